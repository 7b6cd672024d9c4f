#include "flows.hpp"

#include <cstring>

#include "outboxes.hpp"
#include "parcels.hpp"

namespace dragon::wire {

namespace {

constexpr size_t kAcknowledged = kWindow / 4;        // bytes
constexpr Nanoseconds kInOrder = 1'000'000'000;      // for which later frames of the node wait for a message
constexpr Nanoseconds kMemoryTime = 10'000'000'000;  // without memory, after which the sender is notified
constexpr size_t kRemembered = 256;                  // channels for which the reason of lost messages is kept

}  // namespace

struct Flows::Flow {
    Node node;
    uint64_t number;
    Name name;
    bool droppable;
    bool attached = false;
    size_t taken = 0;  // bytes that are put and not yet reported
    uint64_t messages = 0;
    struct Item {
        uint64_t kind;
        Payload payload;
    };
    std::deque<Item> waiting;  // what has arrived and is not in the channel yet
    size_t done = 0;           // bytes of the first, if it is a parcel
    Nanoseconds no_memory_since = 0;
    bool stalled = false;  // the sender was told that there is no memory
    Nanoseconds delay = kLocked, room_delay = kLocked;
    bool blocks = false;  // later frames of the node wait
    Loop::Id limit = 0;   // of that
    Loop::Id again = 0;
    std::vector<uint64_t> asked;  // tickets of those who wait until nothing waits
    bool orphaned = false;        // no sender is left that could be notified of lost messages
    bool closing = false, forgotten = false;
};

Flows::Ref Flows::find(Node node, uint64_t number) const {
    auto found = flows_.find({node, number});
    return found == flows_.end() ? nullptr : found->second;
}

void Flows::notify(Node node, What what, uint64_t number, uint64_t size, bool flag, const Error& error) {
    Note note;
    note.number = number;
    note.size = size;
    note.flag = flag;
    sessions_.send(node, what, note, error ? error.encoded() : "");
}

Payload Flows::memory_for(std::string_view start, size_t size) {
    size_t whole = start.size() + size;
    Payload payload;
    try {
        auto block = std::make_shared<Block>(kDataStart + whole);
        char* data = arena().at<char>(block->at) + kDataStart;
        if (!start.empty()) memcpy(data, start.data(), start.size());
        return {data + start.size(), size, block, block};
    } catch (const OutOfMemory&) {  // the message waits for memory, like others
        payload = Payload::of(std::string(start).append(size, '\0'));
        payload.data += start.size();
        payload.size = size;
        return payload;
    }
}

namespace {

// As a writer of a pipe, which its readers find at its end only when what was sent has arrived.
Role role_in(Name name) { return role_of(name.role) == Role::Writer ? Role::Writer : Role::Plain; }

// Attaches the agent to a channel. Throws ObjectDestroyed; StillLocked, if a stopped process prevents it.
void attach(Name name) {
    Bounded bounded(kLocked);
    arena().attach(name.handle(), Kind::Channel, role_in(name), false);
}

}  // namespace

void Flows::open(Node node, uint64_t number, Name name, bool droppable) {
    auto flow = std::make_shared<Flow>();
    flow->node = node;
    flow->number = number;
    flow->name = name;
    flow->droppable = droppable;
    try {
        attach(name);
        flow->attached = true;
    } catch (const StillLocked&) {  // it is attached with the first message
    } catch (const ObjectDestroyed& error) {
        return notify(node, What::FlowOpened, number, 0, false, {"DestroyedError", error.what()});
    } catch (const NoSuchRole& error) {
        return notify(node, What::FlowOpened, number, 0, false, {"ValueError", error.what()});
    }
    flows_[{node, number}] = flow;
    notify(node, What::FlowOpened, number);
}

void Flows::received(Node node, uint64_t number, uint64_t kind, std::string_view start, Payload& payload) {
    Ref flow = find(node, number);
    if (!flow) return;  // it has failed, of which the sender was notified
    ++flow->messages;
    size_t size = start.size() + payload.size;
    if (traced)
        events_.add({Report::Kind::Received,
                     node,
                     flow->messages,
                     number,
                     {},
                     false,
                     {},
                     {nullptr, size, nullptr, nullptr}});
    bool is_first = flow->waiting.empty();
    if (payload.keep) {  // memory_for() has put `start` before it
        payload.data -= start.size();
        payload.size = size;
    } else if (!start.empty()) {
        payload = Payload::of(std::string(start).append(payload.view()));
    }
    flow->waiting.push_back({kind, payload});
    if (is_first) put(flow);
    // What was not put at once is kept, and the memory of the caller is not.
    if (!flow->waiting.empty() && !flow->waiting.back().payload.keep) {
        Payload& kept = flow->waiting.back().payload;
        kept = Payload::of(std::string(kept.view()));
    }
}

Status Flows::put_first(Flow& flow) {
    Arena& a = arena();
    if (!flow.attached) {
        attach(flow.name);
        flow.attached = true;
    }
    Channel& channel = *a.at<Channel>(flow.name.offset);
    auto& [kind, payload] = flow.waiting.front();
    if (kind != kParcel) return put_message(a, channel, static_cast<uint32_t>(kind), payload);
    size_t before = flow.done;
    try {
        return put_parcel(a, channel, payload.view(), flow.done);
    } catch (const OutOfMemory&) {
        if (flow.done > before) flow.no_memory_since = 0;
        throw;
    }
}

void Flows::put(const Ref& flow) {
    while (!flow->waiting.empty() && !flow->forgotten) {
        size_t size = flow->waiting.front().payload.size;
        Status status;
        try {
            Bounded bounded(kLocked);
            status = put_first(*flow);
        } catch (const OutOfMemory& error) {
            return wait_for_memory(flow, error.what());
        } catch (const StillLocked&) {
            status = Status::Busy;
        } catch (const ObjectDestroyed& error) {
            return fail(flow, {"DestroyedError", error.what()});
        }
        flow->no_memory_since = 0;
        if (status == Status::Timeout) return wait_for_room(flow);
        if (status == Status::Busy || status == Status::Recovered) return wait_for_lock(flow);
        if (status == Status::Destroyed) return fail(flow, {"DestroyedError", "the queue was destroyed"});
        if (status == Status::Broken) return fail(flow, {"OSError 32", "Broken pipe"});
        flow->waiting.pop_front();
        flow->done = 0;
        flow->delay = flow->room_delay = kLocked;
        go_on(*flow);
        if (flow->stalled) {
            flow->stalled = false;
            notify(flow->node, What::FlowStalled, flow->number, 0, false);
        }
        flow->taken += size;
        if (flow->taken >= kAcknowledged && !flow->closing) {
            notify(flow->node, What::FlowTaken, flow->number, flow->taken);
            flow->taken = 0;
        }
    }
    if (flow->forgotten) return;
    release(*flow);
    if (flow->closing) forget(flow);
}

// Whatever a reader takes makes room, so the delay follows the pace of the readers.
void Flows::wait_for_room(const Ref& flow) {
    go_on(*flow);
    flow->again = loop_.later(flow->room_delay, [this, flow] { put(flow); });
    flow->room_delay = std::min(flow->room_delay * 2, kLockedLong);
}

void Flows::wait_for_lock(const Ref& flow) {
    if (!flow->blocks && flow->delay == kLocked) {
        flow->blocks = true;
        sessions_.block(flow->node);
        flow->limit = loop_.later(kInOrder, [this, flow] { go_on(*flow); });
    }
    flow->again = loop_.later(flow->delay, [this, flow] { put(flow); });
    flow->delay = std::min(flow->delay * 2, kLockedLong);
}

void Flows::go_on(Flow& flow) {
    loop_.cancel(flow.limit);
    if (!flow.blocks) return;
    flow.blocks = false;
    sessions_.unblock(flow.node);
}

void Flows::wait_for_memory(const Ref& flow, const std::string& text) {
    Nanoseconds time = now();
    if (!flow->no_memory_since) flow->no_memory_since = time;
    bool too_long = !flow->orphaned && time - flow->no_memory_since >= kMemoryTime;
    if (too_long && flow->droppable)
        return fail(flow, {"MemoryError", text + "; messages in flight are lost"});
    if (too_long && !flow->stalled) {
        flow->stalled = true;
        events_.add({Report::Kind::Log,
                     flow->node,
                     0,
                     0,
                     {},
                     true,
                     "there is no memory for messages from node " + std::to_string(flow->node) +
                         ", which wait until there is: " + text,
                     {}});
        notify(
            flow->node, What::FlowStalled, flow->number, 0, true,
            {"MemoryError", text + "; this message was not sent, earlier ones wait until there is memory"});
    }
    flow->again = loop_.later(kMemoryRetry, [this, flow] { put(flow); });
}

void Flows::fail(const Ref& flow, const Error& error) {
    if (error.kind == "MemoryError")
        events_.add(
            {Report::Kind::Log,
             flow->node,
             0,
             0,
             {},
             true,
             "there is no memory for messages from node " + std::to_string(flow->node) + ": " + error.text,
             {}});
    if (!flow->closing) notify(flow->node, What::FlowFailed, flow->number, 0, false, error);
    lost_[flow->name] = error;
    if (lost_.size() > kRemembered) lost_.erase(lost_.begin());
    forget(flow);
}

Error Flows::why_lost(Name name) {
    auto found = lost_.find(name);
    if (found == lost_.end()) return {};
    Error error = found->second;
    lost_.erase(found);
    return error;
}

void Flows::ask_arrived(Node node, uint64_t number, uint64_t ticket) {
    Ref flow = find(node, number);
    if (flow && !flow->waiting.empty())
        flow->asked.push_back(ticket);
    else
        notify(node, What::Arrived, 0, ticket);
}

void Flows::release(Flow& flow) {
    for (uint64_t ticket : std::exchange(flow.asked, {})) notify(flow.node, What::Arrived, 0, ticket);
}

void Flows::orphan(Node node, uint64_t number) {
    if (Ref flow = find(node, number)) flow->orphaned = true;
}

void Flows::close(Node node, uint64_t number) {
    Ref flow = find(node, number);
    if (!flow) return;
    flow->orphaned = flow->closing = true;
    if (flow->waiting.empty()) forget(flow);
}

void Flows::cut(Node node, uint64_t number) {
    std::vector<uint64_t> ended;
    for (auto it = flows_.lower_bound({node, 0}); it != flows_.end() && it->first <= std::pair{node, number};
         ++it)
        ended.push_back(it->first.second);
    for (uint64_t each : ended) close(node, each);
}

void Flows::node_left(Node node) { cut(node, UINT64_MAX); }

void Flows::forget(const Ref& flow) {
    if (flow->forgotten) return;
    flow->forgotten = true;
    go_on(*flow);
    loop_.cancel(flow->again);
    flows_.erase({flow->node, flow->number});
    release(*flow);
    if (flow->attached) arena().release_when_possible(flow->name.handle(), role_in(flow->name));
}

}  // namespace dragon::wire
