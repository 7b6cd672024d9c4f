// Outgoing messages of this node's processes to channels of other nodes.
//
// A process does not wait while a message is sent to another node. It puts it into a channel of its own node,
// the outbox, from which the thread sends many at a time: small ones together in a parcel, large ones from
// the memory in which the process wrote them. The bytes in flight are limited: a full outbox blocks its
// writers.
#pragma once

#include <deque>
#include <map>
#include <set>

#include "events.hpp"
#include "loop.hpp"
#include "sessions.hpp"

namespace dragon::wire {

// Unacknowledged bytes in flight to one channel: few enough to stay in the caches.
inline constexpr size_t kWindow = 12 << 20;

// Destroys a channel and releases it, later if a stopped process holds its lock.
void destroy_when_possible(Loop& loop, Handle channel);

// Why messages in an outbox were lost: an error, or a connection to the node that broke because of `reason`.
struct Failure {
    Node node = 0;
    Error error;
    std::string reason;
};

class Outboxes {
  public:
    Outboxes(Loop& loop, Sessions& sessions, Events& events)
        : loop_(loop), sessions_(sessions), events_(events) {}

    // Returns the outbox that leads to a channel, for a handle of that process. `droppable`: see Flows.
    Name open(uint64_t pid, Name leads_to, bool droppable, uint32_t own_node);
    // Sends messages with these bytes, after the pending ones: `start`, then `data`. Ignored if the receiver,
    // or the connection to it, is lost.
    void lend(Name leads_to, uint32_t kind, std::string start, Payload data);
    Failure why_gone(Name outbox) const;
    // A process has dropped a handle for which it had that outbox, or has ended: its messages are sent before
    // others are notified. left() returns whether some have not arrived; then an event tells when they have.
    void dropped(uint64_t pid, Name outbox);
    bool left(uint64_t pid);
    // A process has no handle of a channel any more.
    void leave(uint64_t pid, Name leads_to);
    // The channel at that offset has messages in it. Returns whether it is an outbox.
    bool rang(Offset offset);
    void all_may_have_rung();

    // What the other node says of a flow.
    void opened(Node node, uint64_t flow, const Error& error);
    void taken(Node node, uint64_t flow, uint64_t size);
    void failed(Node node, uint64_t flow, const Error& error);
    void stalled(Node node, uint64_t flow, bool stalled, const Error& error);
    void arrived(uint64_t ticket);
    // Messages in flight to a node may be lost. `is_hopeless`: it cannot be reached, or is lost.
    void broken(Node node, const std::string& reason, bool is_hopeless);

    bool traced = false;

  private:
    struct Outbox;
    using Ref = std::shared_ptr<Outbox>;
    void close(uint64_t pid, const Ref& outbox);
    void open_flow(const Ref& outbox);
    void send(const Ref& outbox);
    void send_pending(const Ref& outbox);
    void look_again(const Ref& outbox);
    void pass(Outbox& outbox, uint64_t kind, std::string start, Payload data);
    void follow(uint64_t pid, const Ref& outbox);
    void follow_sent(Outbox& outbox);
    void release(uint64_t ticket);
    void give_up(const Ref& outbox, Failure failure);
    void end(const Ref& outbox);
    Ref of_flow(Node node, uint64_t flow) const;

    struct Arrival {
        uint64_t pid;
        Node node;
        Loop::Id limit;
    };

    Loop& loop_;
    Sessions& sessions_;
    Events& events_;
    std::map<Name, Ref> outboxes_;  // by the channel that they lead to
    std::map<Offset, Ref> by_offset_;
    std::map<std::pair<Node, uint64_t>, Ref> by_flow_;
    std::map<uint64_t, std::set<Name>> used_;  // by process
    std::map<uint64_t, Arrival> arrivals_;     // by ticket
    std::map<uint64_t, uint64_t> under_way_;   // by process: how many of its arrivals
    std::map<Handle, Failure, bool (*)(const Handle&, const Handle&)> failures_{
        [](const Handle& a, const Handle& b) {
            return std::pair(a.offset, a.generation) < std::pair(b.offset, b.generation);
        }};
    uint64_t last_ = 0, last_ticket_ = 0;
};

}  // namespace dragon::wire
