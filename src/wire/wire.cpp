#include "wire.hpp"

#include <fcntl.h>
#include <sys/epoll.h>

#include <cstring>

namespace dragon::wire {

namespace {

constexpr size_t kBell = 32 * 1024;
constexpr size_t kInArena =
    64 * 1024;  // bytes of the smallest payload for Python that is received in the arena

Note note_of(std::string_view body) {
    Note note;
    if (body.size() < sizeof note) throw Invalid("a note that is cut off");
    memcpy(&note, body.data(), sizeof note);
    return note;
}

}  // namespace

Wire::Wire(Node own_node, int bell) : own_node(own_node), bell_(bell) {
    loop.settle = [this] { settle(); };
    requests.dropped = [this](uint64_t pid, Name channel) { dropped(pid, channel); };
    loop.failed = [this](const std::string& text) {
        events.add(
            {Report::Kind::Log, this->own_node, 0, 0, {}, true, "the transfer of data failed: " + text, {}});
    };
    if (bell < 0) return;
    // The kernel limits the size of pipes of a user who has many.
    largest_ = std::min(kBell, static_cast<size_t>(fcntl(bell, F_GETPIPE_SZ)));
    loop.watch(bell, EPOLLIN, [this](uint32_t) { collect(); });
}

Wire::~Wire() = default;

// ---- the bell

void Wire::collect() {
    if (bell_ < 0) return;
    char data[kBell];
    ssize_t count = read(bell_, data, largest_);
    if (count <= 0) return;
    for (size_t at = 0; at + sizeof(Offset) <= static_cast<size_t>(count); at += sizeof(Offset)) {
        Offset offset;
        memcpy(&offset, data + at, sizeof offset);
        rung_.insert(offset);
    }
    if (static_cast<size_t>(count) == largest_) rung_.insert(0);  // it was full: some may be missing
}

void Wire::answer() {
    while (!rung_.empty()) {
        auto rung = std::exchange(rung_, {});
        for (Offset offset : rung) try {
                look_at(offset);
            } catch (const std::exception& error) {
                loop.failed(error.what());
            }
    }
}

void Wire::look_at(Offset offset) {
    if (offset == 0) {
        outboxes.all_may_have_rung();
        requests.serve_desk();
        watches.look_at_all();
        guests.try_all();
    } else if (!outboxes.rang(offset) && !requests.rang(offset)) {
        watches.look_at(offset);
        guests.changed(offset);
    }
}

void Wire::settle() {
    do {
        answer();
        sessions.settle();
    } while (!rung_.empty());  // before something is sent, the bell is read
}

void Wire::look_at_all() { rung_.insert(0); }

// ---- for Python

uint64_t Wire::send(Node node, std::string message, Payload payload, bool kept) {
    collect();
    answer();
    return sessions.send(node, What::Control, std::move(message), std::move(payload), kept);
}

void Wire::end_epoch(Node node, const std::string& reason, bool is_hopeless) {
    hopeless_ = is_hopeless;
    sessions.end_epoch(node, reason);
    hopeless_ = false;
}

void Wire::forget(Node node, const std::string& reason, const std::string& text) {
    sessions.forget(node);
    outboxes.broken(node, reason, true);
    proxies.broken(node, reason, true, true);
    flows.node_left(node);
    watches.node_left(node);
    requests.epoch_ended(node);
    requests.lost(node, text);
    guests.node_left(node);
}

void Wire::dropped(uint64_t pid, Name channel) {
    outboxes.dropped(pid, channel);
    proxies.dropped(pid, channel);
}

bool Wire::left(uint64_t pid) {
    collect();
    answer();
    proxies.left(pid);
    bool under_way = outboxes.left(pid);
    requests.left(pid);
    return under_way;
}

void Wire::trace(bool on) { outboxes.traced = flows.traced = requests.traced = on; }

// ---- for the sessions

void Wire::before_send(Node node) {
    if (!watches.any(node)) return;
    collect();
    if (rung_.count(0)) watches.look_at_all();
    for (auto rung = rung_; Offset offset : rung) watches.look_at(offset);
    watches.look_for(node);
}

void Wire::handle(Node node, What what, std::string_view body, Payload& payload) {
    if (what == What::Control) {
        Payload kept = payload.keep || !payload.size ? payload : Payload::of(std::string(payload.view()));
        events.add({Report::Kind::Control,
                    node,
                    sessions.epoch(node),
                    0,
                    {},
                    false,
                    std::string(body),
                    std::move(kept)});
        return;
    }
    if (what == What::State) return;
    if (what == What::Operate) {
        requests.asked(node, body, payload);
        return;
    }
    if (what == What::Answer) return requests.answered(body, payload);
    Note note = note_of(body);
    std::string_view text = body.substr(sizeof note);
    bool flag = note.flag != 0;
    switch (what) {
        case What::OpenFlow:
            return flows.open(node, note.number, note.name, flag);
        case What::FlowOpened:
            return outboxes.opened(node, note.number, Error::decoded(text));
        case What::Messages:
            return flows.received(node, note.number, note.size, text, payload);
        case What::FlowTaken:
            return outboxes.taken(node, note.number, note.size);
        case What::FlowFailed:
            return outboxes.failed(node, note.number, Error::decoded(text));
        case What::FlowStalled:
            return outboxes.stalled(node, note.number, flag, Error::decoded(text));
        case What::FlowOrphaned:
            return flows.orphan(node, note.number);
        case What::FlowClosed:
            return flows.close(node, note.number);
        case What::FlowCut:
            return flows.cut(node, note.number);
        case What::AskArrived:
            return flows.ask_arrived(node, note.number, note.size);
        case What::Arrived:
            return outboxes.arrived(note.size);
        case What::Watch:
            return flag ? watches.begin(node, note.name) : watches.end(node, note.name);
        case What::CancelOperation:
            return requests.cancelled(node, note.number);
        case What::Left:
            guests.left(node, note.number);
            events.add({Report::Kind::Left, node, note.number, 0, {}, false, {}, {}});
            return;
        case What::Readable:
            return proxies.reported(note.name, flag);
        default:
            throw Invalid("a frame of an unknown kind");
    }
}

void Wire::epoch_ended(Node node, const std::string& reason) {
    outboxes.broken(node, reason, hopeless_);
    proxies.broken(node, reason, hopeless_, false);
    requests.epoch_ended(node);
    events.add({Report::Kind::Ended, node, sessions.epoch(node), 0, {}, false, reason, {}});
}

void Wire::connection_wanted(Node node) { events.add({Report::Kind::Wanted, node, 0, 0, {}, false, {}, {}}); }

void Wire::connection_made(Node node) { events.add({Report::Kind::Made, node, 0, 0, {}, false, {}, {}}); }

void Wire::connection_broken(Node node, uint64_t connection, const std::string& reason, bool invalid) {
    events.add({Report::Kind::Broken, node, connection, 0, {}, invalid, reason, {}});
}

Payload Wire::memory_for(What what, std::string_view body, size_t size) {
    if (what == What::Messages) {
        Note note = note_of(body);
        if (note.size != kParcel) return Flows::memory_for(body.substr(sizeof note), size);
    } else if (what == What::Operate || what == What::Answer) {
        return Flows::memory_for({}, size);
    } else if (size >= kInArena) {
        return Flows::memory_for({}, size);
    }
    return Payload::of(std::string(size, '\0'));
}

void Wire::send_beside(Node node, uint64_t connection, const Payload& payload) {
    events.add({Report::Kind::SendBeside, node, connection, 0, {}, false, {}, payload});
}

void Wire::receive_beside(Node node, uint64_t connection, const Payload& payload) {
    events.add({Report::Kind::TakeBeside, node, connection, 0, {}, false, {}, payload});
}

}  // namespace dragon::wire
