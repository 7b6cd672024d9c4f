// The part of a node's agent that moves data between nodes, in a thread that never takes Python's interpreter
// lock. Python decides who belongs to the run, and makes connections.
#pragma once

#include <set>
#include <thread>

#include "events.hpp"
#include "flows.hpp"
#include "loop.hpp"
#include "outboxes.hpp"
#include "requests.hpp"
#include "sessions.hpp"
#include "watches.hpp"

namespace dragon::wire {

// Every function except run() is called with the mutex of the loop, and ends with settle().
class Wire : public SessionUser {
  public:
    // `bell`: the FIFO in which processes write the offsets of objects that have changed; -1: there is none.
    Wire(Node own_node, int bell);
    ~Wire() override;

    // Sends a message of Python's part, after all messages that processes have put before.
    // Returns the epoch of the session in which it is sent.
    uint64_t send(Node node, std::string message, Payload payload, bool kept);
    // Ends the epoch of a session; `is_hopeless`: the node cannot be reached.
    void end_epoch(Node node, const std::string& reason, bool is_hopeless);
    // The front end has declared a node lost.
    void forget(Node node, const std::string& reason, const std::string& text);
    void dropped(uint64_t pid, Name channel);
    bool left(uint64_t pid);
    // Looks at everything: a process has ended, which may not have told what it changed.
    void look_at_all();
    void trace(bool on);
    void settle();

    void handle(Node node, What what, std::string_view body, Payload& payload) override;
    void before_send(Node node) override;
    void epoch_ended(Node node, const std::string& reason) override;
    void connection_wanted(Node node) override;
    void connection_made(Node node) override;
    void connection_broken(Node node, uint64_t connection, const std::string& reason, bool invalid) override;
    Payload memory_for(What what, std::string_view body, size_t size) override;
    void send_beside(Node node, uint64_t connection, const Payload& payload) override;
    void receive_beside(Node node, uint64_t connection, const Payload& payload) override;

    const Node own_node;
    Loop loop;
    Events events;
    Sessions sessions{loop, *this};
    Outboxes outboxes{loop, sessions, events};
    Flows flows{loop, sessions, events};
    Watches watches{loop, sessions};
    Proxies proxies{loop, sessions, events, own_node};
    Guests guests{loop, own_node};
    Requests requests{loop, sessions, events, guests, own_node};

  private:
    void collect();
    void answer();
    void look_at(Offset offset);

    int bell_;
    size_t largest_ = 0;     // bytes that are read from the bell at once
    std::set<Offset> rung_;  // objects that have changed, which are handled soon; 0: perhaps all
    bool hopeless_ = false;
};

}  // namespace dragon::wire
