// What processes of this node ask for, by way of the desk; and what the agent asks for itself.
#pragma once

#include <map>
#include <set>

#include "../core/channel.hpp"
#include "events.hpp"
#include "guests.hpp"
#include "loop.hpp"
#include "operations.hpp"
#include "sessions.hpp"

namespace dragon::wire {

class Requests {
  public:
    Requests(Loop& loop, Sessions& sessions, Events& events, Guests& guests, Node own_node)
        : loop_(loop), sessions_(sessions), events_(events), guests_(guests), own_node_(own_node) {}

    // The number of nodes of the run. Operations on objects of others fail.
    void set_nodes(Node count) { nodes_ = count; }
    // Opens the desk of this node.
    void open_desk();
    bool rang(Offset offset);
    // Takes what is in the desk.
    void serve_desk();
    // Has an operation performed for the agent. Its outcome becomes an event with the number that is
    // returned.
    uint64_t ask(Operation operation, Payload payload);
    void cancel_own(uint64_t number);
    // Another node asks, or answers.
    void asked(Node node, std::string_view body, Payload& payload);
    void answered(std::string_view body, Payload& payload);
    void cancelled(Node node, uint64_t number);
    // The requests to a node, of epochs before that one, fail with NodeLostError.
    void fail(Node node, uint64_t before_epoch, const std::string& text);
    // Requests to that node fail from now on.
    void lost(Node node, const std::string& text);
    // Forgets what other nodes' requests of earlier epochs wait for.
    void epoch_ended(Node node);
    // A process of this node has ended: the nodes that it asked learn of it.
    void left(uint64_t pid);

    // Whether a process here waits for that node, or one there for this node.
    bool waits(Node node) const;

    struct Pending {
        uint64_t pid;
        Node node;
        Do what;
        Offset offset;
        Nanoseconds since;
    };
    std::vector<Pending> pending() const;
    bool traced = false;
    // A process has dropped a handle that used this channel of its node.
    std::function<void(uint64_t pid, Name channel)> dropped;

  private:
    struct Asked {
        Operation operation;
        Node node;
        uint64_t epoch = 0;
        uint64_t waiting = 0;  // of an operation of this node
        Nanoseconds since = 0;
        bool cancelled = false;
        Guests::Answer done{};  // in place of the channel for the answer
    };
    void take(const Message& message);
    void submit(const Operation& operation, Payload payload, Guests::Answer done = {});
    uint64_t perform(Node node, const Operation& operation, Payload payload, Guests::Answer answer);
    void spread(Node node, const Operation& operation, const Payload& payload, Guests::Answer answer);
    void cancel(uint64_t pid, uint64_t number);
    void finish(uint64_t id, Outcome outcome);
    void deliver(const Asked& asked, Outcome outcome, int tries = 0);
    void undo(const Asked& asked, const Outcome& outcome);

    Loop& loop_;
    Sessions& sessions_;
    Events& events_;
    Guests& guests_;
    Node own_node_;
    Node nodes_ = 1;
    Handle desk_;
    std::map<uint64_t, Asked> asked_;
    std::map<std::pair<uint64_t, uint64_t>, uint64_t> ids_;  // by process and its number
    std::map<std::pair<Node, uint64_t>, uint64_t> serving_;  // waiting operations by node and its id
    std::map<uint64_t, std::set<Node>> contacts_;            // by process
    std::map<Node, std::string> lost_;
    uint64_t last_ = 0;
};

}  // namespace dragon::wire
