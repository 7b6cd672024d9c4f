// Operations of processes with objects of this node: of processes of other nodes, and of event loops of this
// one.
//
// A guest is a process of another node. It has a slot in the arena like the node's own processes, so that
// objects it is attached to stay alive, and what it holds is freed when it has ended. An operation that must
// wait is kept with its object, needs no thread, and is tried again when the object changes. Operations that
// wait for the same thing are served in the order of arrival.
#pragma once

#include <list>
#include <map>

#include "loop.hpp"
#include "operations.hpp"
#include "shards.hpp"

namespace dragon::wire {

class Guests {
  public:
    using Answer = std::function<void(Outcome)>;

    Guests(Loop& loop, Node own_node) : loop_(loop), own_node_(own_node) {}

    Shards shards;

    // Performs an operation, at once or later. `payload` without `keep` is valid only during the call.
    // Returns a number for cancel(), 0 if it is answered.
    uint64_t perform(Node node, const Operation& operation, Payload payload, Answer answer);
    void cancel(uint64_t waiting);
    // Keeps an object alive until `count` processes of a node have attached to it.
    void announce(Node node, Name name, uint64_t count);
    void left(Node node, uint64_t pid);
    void node_left(Node node);
    void changed(Offset offset);
    void try_all();

    struct Parked {
        Node node;
        uint64_t pid;
        Do what;
        Offset offset;
        Nanoseconds since;
        pid_t holder;  // of a lock, otherwise 0
    };
    std::vector<Parked> parked() const;

  private:
    struct Waiting {
        uint64_t number;
        Node node;
        Operation operation;
        Payload payload;
        OwnerId owner;
        Nanoseconds since;
        bool once;  // it was only delayed by a process that held a lock
        bool watched = false;
        Answer answer;
        Loop::Id timer = 0;
    };
    using Place = std::list<Waiting>::iterator;

    OwnerId place(Node node, uint64_t pid);
    void attach(const Operation& operation);
    void detach(Offset offset);
    // Returns whether it is finished; otherwise it must wait, `locked` if only for a lock that another
    // process holds.
    bool attempt(const Operation& operation, const Payload& payload, OwnerId owner, Outcome& out,
                 bool& locked);
    bool do_once(const Operation& operation, const Payload& payload, OwnerId owner, Outcome& out);
    bool is_behind_others(const Operation& operation, OwnerId owner) const;
    void watch(Waiting& waiting, bool on);
    bool try_one(Place waiting);
    void finish(Place waiting, Outcome out);
    void retry_later(Offset offset);

    Loop& loop_;
    Node own_node_;
    std::map<std::pair<Node, uint64_t>, OwnerId> places_;
    std::map<Offset, std::list<Waiting>> waiting_;
    std::map<uint64_t, Place> by_number_;
    std::map<Offset, Handle> attached_;  // by the agent itself, so that an object in use does not go
    std::map<Offset, Loop::Id> retries_;
    uint64_t last_ = 0;
};

}  // namespace dragon::wire
