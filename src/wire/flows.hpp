// Incoming flows: messages that processes of other nodes put into channels of this node, as they arrive from
// those nodes' outboxes.
#pragma once

#include <deque>
#include <map>

#include "events.hpp"
#include "loop.hpp"
#include "sessions.hpp"

namespace dragon::wire {

class Flows {
  public:
    Flows(Loop& loop, Sessions& sessions, Events& events)
        : loop_(loop), sessions_(sessions), events_(events) {}

    // Opens a flow from a node, which keeps the channel alive. `droppable` messages are lost after ten
    // seconds without memory for them.
    void open(Node node, uint64_t number, Name name, bool droppable);
    // Takes messages that have arrived. If there is no room in the channel, or no memory, they wait, and once
    // enough are in flight, senders wait too; if they cannot be put, the sender is notified of the reason
    // once. While a process holds the lock of the channel, nothing later of that node is handled, for a
    // second at most.
    void received(Node node, uint64_t number, uint64_t kind, std::string_view start, Payload& payload);
    // Returns memory for a large payload that `start` precedes in the message, in a block of the arena if
    // there is one.
    static Payload memory_for(std::string_view start, size_t size);
    // Answers once all messages of a flow up to now are in the channel, or lost.
    void ask_arrived(Node node, uint64_t number, uint64_t ticket);
    // No process writes to the outbox any more: what was sent waits for memory without a limit.
    void orphan(Node node, uint64_t number);
    // The outbox is empty and closed. Pending messages are still put.
    void close(Node node, uint64_t number);
    // The connection broke on which the flows of a node up to that number were opened.
    void cut(Node node, uint64_t number);
    void node_left(Node node);
    // Returns the error by which messages to a channel were lost since the last call, if any.
    Error why_lost(Name name);

    bool traced = false;

  private:
    struct Flow;
    using Ref = std::shared_ptr<Flow>;
    Ref find(Node node, uint64_t number) const;
    void put(const Ref& flow);
    Status put_first(Flow& flow);
    void wait_for_memory(const Ref& flow, const std::string& text);
    void wait_for_lock(const Ref& flow);
    void wait_for_room(const Ref& flow);
    void go_on(Flow& flow);
    void fail(const Ref& flow, const Error& error);
    void forget(const Ref& flow);
    void release(Flow& flow);
    void notify(Node node, What what, uint64_t number, uint64_t size = 0, bool flag = false,
                const Error& error = {});

    Loop& loop_;
    Sessions& sessions_;
    Events& events_;
    std::map<std::pair<Node, uint64_t>, Ref> flows_;
    std::map<Name, Error> lost_;
};

}  // namespace dragon::wire
