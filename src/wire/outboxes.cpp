#include "outboxes.hpp"

#include "parcels.hpp"

namespace dragon::wire {

namespace {

constexpr uint64_t kCapacity = 256;  // messages
constexpr uint16_t kMebibytes = 8;   // few blocks, which stay in the processors' caches when they are reused
constexpr size_t kLargestParcel = 256 * 1024;
// For how long the end of a process waits until its messages have arrived. Not longer: where there is no
// memory for them, their reader may be waiting for that end.
constexpr Nanoseconds kArriveWithin = 10'000'000'000;

}  // namespace

struct Outboxes::Outbox {
    Handle channel;
    Name leads_to;
    bool droppable;
    std::map<uint64_t, uint64_t> users;  // by process: the number of its handles
    struct Lent {
        uint32_t kind;
        std::string start;
        Payload data;
    };
    std::deque<Lent> lent;
    uint64_t flow = 0;
    bool confirmed = false;  // the other node has the channel
    bool closing = false, ended = false;
    uint64_t messages = 0;  // that were sent
    size_t under_way = 0;   // bytes
    Nanoseconds delay = kLocked;
    Loop::Id again = 0;
    // Tickets of those whose arrival is asked for once this number of messages was taken out of the channel.
    std::deque<std::pair<uint64_t, uint64_t>> awaited;

    Channel& at() const { return *arena().at<Channel>(channel.offset); }
    Node node() const { return leads_to.node(); }
};

void destroy_when_possible(Loop& loop, Handle channel) {
    Arena& a = arena();
    try {
        Bounded bounded(kLocked);
        a.at<Channel>(channel.offset)->destroy(a);
    } catch (const StillLocked&) {
        loop.later(kLockedLong, [&loop, channel] { destroy_when_possible(loop, channel); });
        return;
    }
    a.release_when_possible(channel, Role::Plain);
}

Name Outboxes::open(uint64_t pid, Name leads_to, bool droppable, uint32_t own_node) {
    Ref& outbox = outboxes_[leads_to];
    if (!outbox) {
        Arena& a = arena();
        outbox = std::make_shared<Outbox>();
        outbox->leads_to = leads_to;
        outbox->droppable = droppable;
        try {
            outbox->channel = a.create<Channel>(Kind::Channel, Role::Plain, sizeof(Channel), kCapacity, false,
                                                Origin{}, kMebibytes);
        } catch (...) {
            outboxes_.erase(leads_to);
            throw;
        }
        by_offset_[outbox->channel.offset] = outbox;
        outbox->at().enable_bell(a, Channel::kAgents);
        open_flow(outbox);
    }
    ++outbox->users[pid];
    used_[pid].insert(leads_to);
    return {outbox->channel.offset, outbox->channel.generation, own_node << kNodeShift};
}

// Opens a flow. Messages may follow at once, since sessions keep the order.
void Outboxes::open_flow(const Ref& outbox) {
    outbox->flow = ++last_;
    by_flow_[{outbox->node(), outbox->flow}] = outbox;
    Note note;
    note.number = outbox->flow;
    note.name = outbox->leads_to;
    note.flag = outbox->droppable;
    sessions_.send(outbox->node(), What::OpenFlow, note);
    send(outbox);
}

Outboxes::Ref Outboxes::of_flow(Node node, uint64_t flow) const {
    auto found = by_flow_.find({node, flow});
    return found == by_flow_.end() ? nullptr : found->second;
}

void Outboxes::opened(Node node, uint64_t flow, const Error& error) {
    Ref outbox = of_flow(node, flow);
    if (!outbox) return;
    if (!error) {
        outbox->confirmed = true;
        return;
    }
    by_flow_.erase({node, flow});
    outbox->flow = 0;
    give_up(outbox, {node, {}, ""});  // the next operation on the channel itself raises the reason
}

void Outboxes::lend(Name leads_to, uint32_t kind, std::string start, Payload data) {
    auto found = outboxes_.find(leads_to);
    if (found == outboxes_.end()) return;
    found->second->lent.push_back({kind, std::move(start), std::move(data)});
    send(found->second);
}

Failure Outboxes::why_gone(Name outbox) const {
    auto found = failures_.find(outbox.handle());
    return found == failures_.end() ? Failure{} : found->second;
}

// ---- sending

bool Outboxes::rang(Offset offset) {
    auto found = by_offset_.find(offset);
    if (found == by_offset_.end()) return false;
    send(Ref(found->second));
    return true;
}

void Outboxes::all_may_have_rung() {
    for (auto all = by_offset_; auto& [offset, outbox] : all) send(outbox);
}

void Outboxes::send(const Ref& outbox) {
    send_pending(outbox);
    if (!outbox->awaited.empty()) follow_sent(*outbox);
}

void Outboxes::send_pending(const Ref& outbox) {
    if (!outbox->flow || outbox->ended) return;
    Arena& a = arena();
    outbox->at().heard();
    while (!outbox->ended && outbox->under_way < kWindow) {
        Taken taken;
        Status status = take_parcel(a, outbox->at(), kLargestParcel, taken);
        if (status == Status::Busy) return look_again(outbox);
        outbox->delay = kLocked;
        bool any = !taken.parcel.empty() || taken.large.block;
        if (!taken.parcel.empty()) pass(*outbox, kParcel, {}, Payload::of(std::move(taken.parcel)));
        if (taken.large.block) pass(*outbox, taken.kind, {}, std::move(taken.large));
        if (any) continue;
        if (!outbox->lent.empty()) {
            auto lent = std::move(outbox->lent.front());
            outbox->lent.pop_front();
            pass(*outbox, lent.kind, std::move(lent.start), std::move(lent.data));
            continue;
        }
        if (outbox->closing) end(outbox);
        return;
    }
}

// Called when a process that is putting a message holds the lock.
void Outboxes::look_again(const Ref& outbox) {
    if (outbox->again) return;
    outbox->again = loop_.later(outbox->delay, [this, outbox] {
        outbox->again = 0;
        send(outbox);
    });
    outbox->delay = std::min(outbox->delay * 2, kLockedLong);
}

void Outboxes::pass(Outbox& outbox, uint64_t kind, std::string start, Payload data) {
    size_t size = start.size() + data.size;
    outbox.under_way += size;
    ++outbox.messages;
    if (traced)
        events_.add({Report::Kind::Sent,
                     outbox.node(),
                     outbox.messages,
                     outbox.flow,
                     {},
                     false,
                     {},
                     {nullptr, size, nullptr, nullptr}});
    Note note;
    note.number = outbox.flow;
    note.size = kind;
    sessions_.send(outbox.node(), What::Messages, note, start, std::move(data));
}

void Outboxes::taken(Node node, uint64_t flow, uint64_t size) {
    Ref outbox = of_flow(node, flow);
    if (!outbox) return;
    bool was_full = outbox->under_way >= kWindow;
    outbox->under_way -= std::min<size_t>(size, outbox->under_way);
    if (was_full) send(outbox);
}

void Outboxes::stalled(Node node, uint64_t flow, bool stalled, const Error& error) {
    Ref outbox = of_flow(node, flow);
    if (!outbox) return;
    if (stalled)
        failures_[outbox->channel] = {node, error, ""};
    else
        failures_.erase(outbox->channel);
    outbox->at().refuse(stalled);
}

// ---- the end of its users

void Outboxes::dropped(uint64_t pid, Name name) {
    auto found = by_offset_.find(name.offset);
    if (found == by_offset_.end() || found->second->channel.generation != name.generation)
        return;  // it has failed
    Ref outbox = found->second;
    auto user = outbox->users.find(pid);
    if (user == outbox->users.end()) return;
    if (user->second > 1) {
        --user->second;
        return;
    }
    leave(pid, outbox->leads_to);
}

void Outboxes::leave(uint64_t pid, Name leads_to) {
    auto used = used_.find(pid);
    if (used == used_.end() || !used->second.erase(leads_to)) return;
    if (used->second.empty()) used_.erase(used);
    if (auto found = outboxes_.find(leads_to); found != outboxes_.end()) close(pid, Ref(found->second));
}

bool Outboxes::left(uint64_t pid) {
    auto used = std::move(used_[pid]);
    used_.erase(pid);
    for (const Name& name : used) {
        auto found = outboxes_.find(name);
        if (found != outboxes_.end()) close(pid, Ref(found->second));
    }
    return under_way_.count(pid) > 0;
}

void Outboxes::close(uint64_t pid, const Ref& outbox) {
    if (!outbox->users.erase(pid)) return;
    if (!outbox->users.empty()) {
        send(outbox);
    } else {
        outboxes_.erase(outbox->leads_to);
        outbox->closing = true;
        send(outbox);
        if (outbox->flow && !outbox->ended) {
            Note note;
            note.number = outbox->flow;
            sessions_.send(outbox->node(), What::FlowOrphaned, note);
        }
    }
    follow(pid, outbox);
}

// Notes which messages of a process have not arrived.
void Outboxes::follow(uint64_t pid, const Ref& outbox) {
    uint64_t there = outbox->ended ? 0 : outbox->at().size();
    if (!there && !(outbox->flow && outbox->messages)) return;
    uint64_t ticket = ++last_ticket_;
    ++under_way_[pid];
    arrivals_[ticket] = {pid, outbox->node(),
                         loop_.later(kArriveWithin, [this, ticket] { release(ticket); })};
    outbox->awaited.emplace_back(there ? outbox->at().taken() + there : 0, ticket);
    follow_sent(*outbox);
}

// Asks the other node for the arrival of messages that are sent by now.
void Outboxes::follow_sent(Outbox& outbox) {
    while (!outbox.awaited.empty() && (outbox.ended || outbox.awaited.front().first <= outbox.at().taken())) {
        uint64_t ticket = outbox.awaited.front().second;
        outbox.awaited.pop_front();
        if (!outbox.flow) {
            release(ticket);
            continue;
        }
        Note note;
        note.number = outbox.flow;
        note.size = ticket;
        sessions_.send(outbox.node(), What::AskArrived, note);
    }
}

void Outboxes::arrived(uint64_t ticket) { release(ticket); }

void Outboxes::release(uint64_t ticket) {
    auto found = arrivals_.find(ticket);
    if (found == arrivals_.end()) return;
    uint64_t pid = found->second.pid;
    loop_.cancel(found->second.limit);
    arrivals_.erase(found);
    if (--under_way_[pid] > 0) return;
    under_way_.erase(pid);
    events_.add({Report::Kind::Arrived, 0, pid, 0, {}, false, {}, {}});
}

// ---- failures

void Outboxes::failed(Node node, uint64_t flow, const Error& error) {
    Ref outbox = of_flow(node, flow);
    if (!outbox) return;
    by_flow_.erase({node, flow});
    outbox->flow = 0;
    give_up(outbox, {node, error, ""});
}

void Outboxes::broken(Node node, const std::string& reason, bool is_hopeless) {
    std::vector<Ref> reopened;
    uint64_t last = 0;
    for (auto it = by_flow_.lower_bound({node, 0}); it != by_flow_.end() && it->first.first == node;) {
        Ref outbox = it->second;
        last = it->first.second;
        it = by_flow_.erase(it);
        outbox->flow = 0;
        if (outbox->confirmed || outbox->messages || is_hopeless)
            give_up(outbox, {node, {}, reason});
        else
            reopened.push_back(outbox);
    }
    if (last) {
        Note note;
        note.number = last;
        sessions_.send(node, What::FlowCut, note);
    }
    for (auto& outbox : reopened)
        if (!outbox->ended) open_flow(outbox);
    for (auto all = arrivals_; auto& [ticket, arrival] : all)
        if (arrival.node == node) release(ticket);
}

void Outboxes::give_up(const Ref& outbox, Failure failure) {
    auto found = outboxes_.find(outbox->leads_to);
    if (found != outboxes_.end() && found->second == outbox) outboxes_.erase(found);
    failures_[outbox->channel] = std::move(failure);
    end(outbox);
}

// Destroys the channel. A process that puts afterwards finds it destroyed, and requests the reason.
void Outboxes::end(const Ref& outbox) {
    if (outbox->ended) return;
    outbox->ended = true;
    outbox->lent.clear();
    loop_.cancel(outbox->again);
    by_offset_.erase(outbox->channel.offset);
    if (outbox->flow) {
        by_flow_.erase({outbox->node(), outbox->flow});
        Note note;
        note.number = outbox->flow;
        sessions_.send(outbox->node(), What::FlowClosed, note);
    }
    follow_sent(*outbox);
    destroy_when_possible(loop_, outbox->channel);
}

}  // namespace dragon::wire
