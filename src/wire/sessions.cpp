#include "sessions.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace dragon::wire {

namespace {

constexpr size_t kInline =
    32 * 1024;                        // bytes of the largest body or payload that shares a record with others
constexpr size_t kBatch = 64 * 1024;  // bytes of frames in a record, about
constexpr size_t kPiece = 256 * 1024;  // bytes of a record with a piece: it stays in the processor's cache
constexpr size_t kLargestRecord = kPiece + kTag;
constexpr size_t kBuffer = 64 * 1024;  // bytes that are received at once, at first
constexpr size_t kAtATime = 8 << 20;   // bytes before other connections have their turn
constexpr size_t kBulk = 128 * 1024;   // bytes of the smallest payload that goes beside
constexpr uint64_t kLargestBody = 64 << 20, kLargestPayload = uint64_t{1} << 36;
constexpr Nanoseconds kAcknowledge = 50'000'000;  // within which frames are acknowledged
constexpr uint64_t kAcknowledgeFrames = 256;      // or sooner, if there are many
constexpr size_t kAcknowledgeBytes = 1 << 20;     // or if they are large

std::string system_error(int number) {
    return "[Errno " + std::to_string(number) + "] " + std::generic_category().message(number);
}

}  // namespace

struct Sessions::Session {
    Node node;
    uint64_t epoch = 0;
    std::array<Ended, 4> ended{};
    uint64_t last = 0, handled = 0, acknowledged = 0;
    uint64_t kept_last = 0, kept_handled = 0;  // over all epochs
    size_t unacknowledged = 0;                 // bytes
    Loop::Id acknowledging = 0;                // a timer
    std::deque<Sent> sent;                     // what the other agent has not acknowledged
    std::vector<Link> links;
    // Frames of earlier epochs of which it is not known whether they were handled, with their epochs.
    std::deque<std::pair<uint64_t, Sent>> unsure;
    Link link;  // the one of them over which frames are sent
    bool was_connected = false, wanted = false;
    int blocked = 0;
};

struct Sessions::Connection {
    Session* session;  // null once it has ended
    int fd;
    Loop::Id id = 0;
    std::unique_ptr<Seal> out, in;
    bool plain, takes_beside, sends_beside;
    uint64_t epoch = 0;  // the last one that the other side sent over it
    bool is_dirty = false, is_resumed = false;

    // What is written: the state, then the frames of the session from number `next` on. The rest of a frame
    // whose head is written, and the rest of a record.
    bool state_due = false;
    uint64_t next = 1;
    std::deque<Payload> parts;
    std::string rest;
    size_t rest_at = 0;
    bool is_full = false;

    // What is received: the buffer, a record with frames, and a large frame of which parts are missing.
    std::vector<char> buffer = std::vector<char>(kBuffer);
    size_t start = 0, end = 0;
    std::string frames;
    size_t at = 0;
    Head head;
    int part = 0;  // of the frame with that head: 0 none, 1 its body, 2 its payload
    std::string body;
    Payload payload;
    char* fill = nullptr;
    size_t missing = 0;
    bool awaits_beside = false;

    bool is_blocked() const { return awaits_beside || (session && session->blocked > 0); }
    ~Connection() { close(fd); }
};

Sessions::~Sessions() { abort_all(); }

Sessions::Session* Sessions::find(Node node) const {
    auto found = sessions_.find(node);
    return found == sessions_.end() ? nullptr : found->second.get();
}

Sessions::Session& Sessions::session(Node node) {
    auto& s = sessions_[node];
    if (!s) {
        s = std::make_shared<Session>();
        s->node = node;
    }
    return *s;
}

// ---- connections

uint64_t Sessions::add(Made made) {
    auto c = std::make_shared<Connection>();
    c->fd = made.fd;
    c->session = nullptr;
    if (lost_.count(made.node)) return 0;  // declared lost since its certificate was checked
    Session& s = session(made.node);
    c->session = &s;
    c->out = make_seal(made.out_key, true);
    c->in = make_seal(made.in_key, false);
    c->plain = made.plain;
    c->takes_beside = made.takes_beside;
    c->sends_beside = made.sends_beside;
    if (made.early.size() > c->buffer.size()) c->buffer.resize(made.early.size());
    std::copy(made.early.begin(), made.early.end(), c->buffer.begin());
    c->end = made.early.size();
    c->id = loop_.watch(made.fd, EPOLLIN, [this, c](uint32_t events) { on_events(c, events); });
    connections_.emplace(c->id, c);
    s.links.push_back(c);
    s.was_connected = true;
    s.wanted = false;
    write_state(*c);
    if (!s.link) use(s, c);
    c->is_resumed = true;
    resumed_.push_back(c);
    user_.connection_made(s.node);
    return c->id;
}

void Sessions::use(Session& s, Link c) {
    s.link = std::move(c);
    if (!s.link) return;
    s.link->next = s.sent.empty() ? s.last + 1 : s.sent.front().head.number;
    write_state(*s.link);  // what was acknowledged over the one before may be lost
}

void Sessions::broke(Connection& c, const std::string& reason, bool invalid) {
    if (!c.session) return;
    Session& s = *c.session;
    c.session = nullptr;
    loop_.unwatch(c.id);
    shutdown(c.fd, SHUT_RDWR);
    connections_.erase(c.id);
    std::erase_if(s.links, [&](const Link& link) { return link.get() == &c; });
    if (s.link.get() == &c) use(s, s.links.empty() ? nullptr : s.links.front());
    user_.connection_broken(s.node, c.id, reason, invalid);
}

void Sessions::abort(uint64_t connection, const std::string& reason) {
    auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    Link c = found->second;
    broke(*c, reason);
}

void Sessions::abort_all() {
    while (!connections_.empty()) abort(connections_.begin()->first, "this node's agent ends");
}

void Sessions::forget(Node node) {
    lost_.insert(node);
    Session* s = find(node);
    if (!s) return;
    while (!s->links.empty()) {
        Link c = s->links.back();
        broke(*c, "the node is lost");
    }
    loop_.cancel(s->acknowledging);
    sessions_.erase(node);
}

std::vector<uint64_t> Sessions::connections() const {
    std::vector<uint64_t> result;
    for (auto& [id, c] : connections_) result.push_back(id);
    return result;
}

uint64_t Sessions::epoch(Node node) const {
    Session* s = find(node);
    return s ? s->epoch : 0;
}

bool Sessions::connected(Node node) const {
    Session* s = find(node);
    return s && s->link;
}

bool Sessions::was_connected(Node node) const {
    Session* s = find(node);
    return s && s->was_connected;
}

bool Sessions::has_unacknowledged(Node node) const {
    Session* s = find(node);
    return s && !s->sent.empty();
}

bool Sessions::has_kept(Node node) const {
    Session* s = find(node);
    return s && std::any_of(s->sent.begin(), s->sent.end(), [](const Sent& f) { return f.head.kept; });
}

void Sessions::watch(Connection& c) {
    // A blocked connection reports its end once, and is read later.
    uint32_t events = c.is_blocked() ? uint32_t{EPOLLONESHOT} : uint32_t{EPOLLIN};
    loop_.change(c.id, events | (c.is_full ? uint32_t{EPOLLOUT} : 0));
}

void Sessions::on_events(const Link& c, uint32_t events) {
    if (events & EPOLLOUT) {
        c->is_full = false;
        watch(*c);
        pump(c);
    }
    if (events & ~uint32_t{EPOLLOUT} && c->session && !c->is_blocked()) read(c);
}

void Sessions::block(Node node) {
    Session& s = session(node);
    if (s.blocked++ == 0)
        for (auto& c : s.links) watch(*c);
}

void Sessions::unblock(Node node) {
    Session* s = find(node);
    if (!s || s->blocked == 0 || --s->blocked > 0) return;
    for (auto& c : s->links) {
        watch(*c);
        if (!c->is_resumed) resumed_.push_back(c);
        c->is_resumed = true;
    }
}

void Sessions::finish_beside(uint64_t connection) {
    auto found = connections_.find(connection);
    if (found == connections_.end() || !found->second->awaits_beside) return;
    Link c = found->second;
    c->awaits_beside = false;
    c->missing = 0;
    watch(*c);
    if (!c->is_resumed) resumed_.push_back(c);
    c->is_resumed = true;
}

// ---- epochs

void Sessions::end_epoch(Node node, const std::string& reason) {
    Session& s = session(node);
    end_epoch(s, s.epoch + 1, reason, nullptr);
}

void Sessions::end_epoch(Session& s, uint64_t epoch, const std::string& reason, const Connection* besides) {
    uint64_t ended = std::exchange(s.epoch, epoch);
    if (s.was_connected) {
        std::shift_right(s.ended.begin(), s.ended.end(), 1);
        s.ended[0] = {ended, s.handled};
    }
    std::deque<Sent> before;
    before.swap(s.sent);
    s.last = s.handled = s.acknowledged = s.unacknowledged = 0;
    s.wanted = false;
    for (auto& frame : before)
        if (frame.head.kept) {
            frame.head.number = ++s.last;
            s.sent.push_back(std::move(frame));
        } else if (frame.lost) {
            s.unsure.emplace_back(ended, std::move(frame));
        }
    if (besides)
        for (auto links = s.links; auto& c : links)
            if (c.get() != besides) broke(*c, "the other agent could not connect again in time");
    s.was_connected = !s.links.empty();
    for (auto& c : s.links) write_state(*c);
    use(s, s.link);
    user_.epoch_ended(s.node, reason);
}

void Sessions::write_state(Connection& c) {
    c.state_due = true;
    if (c.is_dirty) return;
    c.is_dirty = true;
    dirty_.push_back(connections_.at(c.id));
}

// ---- what this side sends

uint64_t Sessions::send(Node node, What what, std::string body, Payload payload, bool kept,
                        std::function<void()> lost) {
    if (lost_.count(node)) return 0;
    user_.before_send(node);
    Session& s = session(node);
    Head head;
    head.what = what;
    if (kept) head.kept = ++s.kept_last;
    queue(s, {head, std::move(body), std::move(payload), std::move(lost)});
    return s.epoch;
}

void Sessions::queue(Session& s, Sent frame) {
    frame.head.body = static_cast<uint32_t>(frame.body.size());
    frame.head.payload = frame.payload.size;
    frame.head.number = ++s.last;
    s.sent.push_back(std::move(frame));
    if (s.link) {
        if (!s.link->is_dirty) dirty_.push_back(s.link);
        s.link->is_dirty = true;
    } else if (!s.wanted) {
        s.wanted = true;
        user_.connection_wanted(s.node);
    }
}

void Sessions::settle() {
    while (!dirty_.empty() || !resumed_.empty()) {
        std::vector<Link> resumed, dirty;
        resumed.swap(resumed_);
        for (auto& c : resumed) {
            c->is_resumed = false;
            if (c->session && !c->is_blocked()) read(c);
        }
        dirty.swap(dirty_);
        for (auto& c : dirty) {
            c->is_dirty = false;
            if (c->session && !c->is_full) pump(c);
        }
    }
}

void Sessions::pump(const Link& c) {
    try {
        if (write_on(*c)) return;
        c->is_full = true;  // or others have their turn
        watch(*c);
    } catch (const SystemFailure& error) {
        broke(*c, error.what());
    }
}

// Returns whether everything is written.
bool Sessions::write_on(Connection& c) {
    for (size_t left = kAtATime; left > 0;) {
        if (c.rest_at < c.rest.size()) {
            ssize_t sent = ::send(c.fd, c.rest.data() + c.rest_at, c.rest.size() - c.rest_at, MSG_NOSIGNAL);
            if (sent < 0 && errno == EINTR) continue;
            if (sent < 0 && errno == EAGAIN) return false;
            if (sent < 0) throw SystemFailure(errno, system_error(errno));
            c.rest_at += static_cast<size_t>(sent);
            if (c.rest_at < c.rest.size()) return false;
            c.rest.clear();
            c.rest_at = 0;
        }
        std::string_view record = c.parts.empty() ? next_record(*c.session, c) : next_piece(c);
        if (record.empty()) return true;
        left -= std::min(left, record.size());
        if (!transmit(c, record.data(), record.size())) return false;
    }
    return false;
}

// Sends a record. Returns false if the connection takes no more now.
bool Sessions::transmit(Connection& c, const char* data, size_t size) {
    ssize_t sent;
    while ((sent = ::send(c.fd, data, size, MSG_NOSIGNAL)) < 0 && errno == EINTR);
    if (sent < 0 && errno != EAGAIN) throw SystemFailure(errno, system_error(errno));
    size_t done = sent < 0 ? 0 : static_cast<size_t>(sent);
    if (done == size) return true;
    c.rest.swap(sealed_);  // without a copy
    c.rest_at = static_cast<size_t>(data - c.rest.data()) + done;
    return false;
}

namespace {

void put_size(std::string& record, size_t size) {
    auto length = static_cast<uint32_t>(size);
    memcpy(record.data(), &length, sizeof length);
}

}  // namespace

std::string_view Sessions::next_record(Session& s, Connection& c) {
    plain_.clear();
    if (c.state_due) {
        c.state_due = false;
        State state{s.epoch, s.ended};
        Head head;
        head.body = sizeof state;
        append(s, c, {head, std::string(reinterpret_cast<const char*>(&state), sizeof state), {}, {}});
    }
    if (s.link.get() == &c && !s.sent.empty()) {
        c.next = std::max(c.next, s.sent.front().head.number);
        for (size_t i = c.next - s.sent.front().head.number; i < s.sent.size() && plain_.size() < kBatch;
             ++i) {
            ++c.next;
            if (!append(s, c, s.sent[i])) break;
        }
    }
    if (plain_.empty()) return {};
    sealed_.resize(sizeof(uint32_t) + plain_.size() + kTag);
    put_size(sealed_, plain_.size() + kTag);
    c.out->seal(sealed_.data() + sizeof(uint32_t), plain_.data(), plain_.size());
    return sealed_;
}

// Returns false if parts of the frame follow in records of their own.
bool Sessions::append(Session& s, Connection& c, const Sent& frame) {
    Head head = frame.head;
    head.acknowledged = s.handled;
    if (s.link.get() == &c) {  // the other agent may have closed the others, without a word
        s.acknowledged = s.handled;
        s.unacknowledged = 0;
    }
    bool is_large = head.body > kInline || head.payload > kInline;
    bool is_beside = is_large && c.sends_beside && head.payload >= kBulk;
    if (is_beside) head.flags |= kBeside;
    plain_.append(reinterpret_cast<const char*>(&head), sizeof head);
    if (!is_large) {
        plain_.append(frame.body).append(frame.payload.view());
        return true;
    }
    if (head.body) c.parts.push_back(Payload::of(frame.body));
    if (is_beside)
        user_.send_beside(s.node, c.id, frame.payload);
    else if (head.payload)
        c.parts.push_back(frame.payload);
    return false;
}

std::string_view Sessions::next_piece(Connection& c) {
    Payload& part = c.parts.front();
    size_t size = std::min(part.size, kPiece), tag = c.plain ? 0 : kTag;
    sealed_.resize(sizeof(uint32_t) + size + tag);
    put_size(sealed_, size + tag);
    if (c.plain)
        memcpy(sealed_.data() + sizeof(uint32_t), part.data, size);
    else
        c.out->seal(sealed_.data() + sizeof(uint32_t), part.data, size);
    part.data += size;
    part.size -= size;
    if (part.size == 0) c.parts.pop_front();
    return sealed_;
}

// ---- what the other side sends

void Sessions::read(const Link& link) {
    Connection& c = *link;
    try {
        for (size_t left = kAtATime; parse(c) && left > 0;) {
            size_t room = c.buffer.size() - c.end;
            ssize_t count = recv(c.fd, c.buffer.data() + c.end, room, 0);
            if (count < 0 && errno == EINTR) continue;
            if (count < 0 && errno == EAGAIN) return;
            if (count < 0) return broke(c, system_error(errno));
            if (count == 0) return broke(c, "the connection was closed");
            c.end += static_cast<size_t>(count);
            left -= std::min(left, static_cast<size_t>(count));
            if (static_cast<size_t>(count) < room) left = 0;  // nothing more is there
        }
    } catch (const Invalid& error) {
        broke(c, std::string("it sent invalid data: ") + error.what(), true);
    }
}

// Handles all whole records, and makes room for the next one. Returns false if the connection has ended, or
// no more is to be handled now.
bool Sessions::parse(Connection& c) {
    for (;;) {
        if (!take_frames(c)) return false;
        size_t there = c.end - c.start, needed = sizeof(uint32_t);
        if (there >= needed) {
            uint32_t size;
            memcpy(&size, c.buffer.data() + c.start, sizeof size);
            if (size > kLargestRecord) throw Invalid("a record of " + std::to_string(size) + " bytes");
            needed += size;
            if (there >= needed) {
                const char* data = c.buffer.data() + c.start + sizeof size;
                c.start += needed;
                take_record(c, data, size);
                continue;
            }
        }
        if (c.start + needed > c.buffer.size() || c.start == c.end) {
            memmove(c.buffer.data(), c.buffer.data() + c.start, there);
            c.start = 0;
            c.end = there;
            // A large one twice, so that the kernel is asked less often.
            if (needed > c.buffer.size()) c.buffer.resize(2 * (sizeof(uint32_t) + kLargestRecord));
        }
        return true;
    }
}

void Sessions::take_record(Connection& c, const char* data, size_t size) {
    if (!c.part) {
        if (size < kTag) throw Invalid("a record without a tag");
        c.frames.resize(size - kTag);
        c.at = 0;
        if (!c.in->open(c.frames.data(), data, size)) throw Invalid("a record that was changed on the way");
        return;
    }
    size_t tag = c.plain ? 0 : kTag;
    if (size < tag || size - tag > c.missing || size == tag) throw Invalid("a piece of another size");
    if (c.plain)
        memcpy(c.fill, data, size);
    else if (!c.in->open(c.fill, data, size))
        throw Invalid("a piece that was changed on the way (AES-GCM)");
    c.fill += size - tag;
    c.missing -= size - tag;
}

bool Sessions::take_frames(Connection& c) {
    for (;;) {
        if (!c.session || c.is_blocked()) return false;
        if (c.part) {
            if (c.missing) return true;
            next_part(c);
            continue;
        }
        size_t left = c.frames.size() - c.at;
        if (left == 0) return true;
        Head head;
        if (left < sizeof head) throw Invalid("a head that is cut off");
        memcpy(&head, c.frames.data() + c.at, sizeof head);
        c.at += sizeof head;
        left -= sizeof head;
        if (head.what >= What::kCount || head.body > kLargestBody || head.payload > kLargestPayload)
            throw Invalid("a frame of an unknown kind, or too large");
        if (head.body > kInline || head.payload > kInline) {
            if (left) throw Invalid("a large frame that is not the last of its record");
            begin_large(c, head);
            continue;
        }
        if (head.body + head.payload > left) throw Invalid("a frame that is cut off");
        std::string_view body(c.frames.data() + c.at, head.body);
        Payload payload{body.data() + body.size(), head.payload, nullptr, nullptr};
        c.at += head.body + head.payload;
        hear(c, head, body, payload);
    }
}

void Sessions::begin_large(Connection& c, const Head& head) {
    c.head = head;
    c.part = 1;
    c.body.resize(head.body);
    c.fill = c.body.data();
    c.missing = head.body;
}

// Called when a part of a large frame is there: expects the next one, or handles the frame.
void Sessions::next_part(Connection& c) {
    if (c.part == 1) {
        c.part = 2;
        c.missing = c.head.payload;
        if (!c.missing) return;
        c.payload = user_.memory_for(c.head.what, c.body, c.head.payload);
        c.fill = const_cast<char*>(c.payload.data);
        if (!(c.head.flags & kBeside)) return;
        if (!c.takes_beside) throw Invalid("a payload over a fabric, but there is none");
        c.awaits_beside = true;
        watch(c);
        user_.receive_beside(c.session->node, c.id, c.payload);
        return;
    }
    c.part = 0;
    std::string body = std::move(c.body);
    Payload payload = std::move(c.payload);
    c.body = {};
    c.payload = {};
    hear(c, c.head, body, payload);
}

void Sessions::hear(Connection& c, const Head& head, std::string_view body, Payload& payload) {
    Session& s = *c.session;
    if (head.what == What::State) {
        State state;
        if (body.size() != sizeof state) throw Invalid("a state of another size");
        memcpy(&state, body.data(), sizeof state);
        c.epoch = state.epoch;
        if (c.epoch > s.epoch) end_epoch(s, c.epoch, "the other agent could not connect again in time", &c);
        if (c.epoch == s.epoch) settle_unsure(s, state);
    }
    if (c.epoch != s.epoch) return;
    drop(s, head.acknowledged);
    if (!head.number) return;
    if (head.number > s.handled + 1)
        throw Invalid("frame " + std::to_string(head.number) + " after frame " + std::to_string(s.handled));
    if (head.number <= s.handled) return;
    s.handled = head.number;
    acknowledge_soon(s, head.payload);
    if (head.kept) {
        if (head.kept > s.kept_handled + 1) throw Invalid("a kept frame is missing");
        if (head.kept <= s.kept_handled) return;
        s.kept_handled = head.kept;
    }
    user_.handle(s.node, head.what, body, payload);
}

bool Sessions::State::handled(uint64_t in_epoch, uint64_t number) const {
    for (const Ended& each : ended)
        if (each.epoch == in_epoch) return number <= each.handled;
    return ended.back().epoch > in_epoch;  // it is not known any more
}

void Sessions::settle_unsure(Session& s, const State& told) {
    auto unsure = std::exchange(s.unsure, {});
    // The last first, since messages are put back before the others.
    for (auto it = unsure.rbegin(); it != unsure.rend(); ++it) {
        auto& [epoch, frame] = *it;
        if (!told.handled(epoch, frame.head.number)) frame.lost();
    }
}

void Sessions::drop(Session& s, uint64_t acknowledged) {
    if (acknowledged > s.last) throw Invalid("a frame is acknowledged that was not sent");
    while (!s.sent.empty() && s.sent.front().head.number <= acknowledged) s.sent.pop_front();
}

void Sessions::acknowledge_soon(Session& s, size_t size) {
    s.unacknowledged += size;
    if (s.handled - s.acknowledged >= kAcknowledgeFrames || s.unacknowledged >= kAcknowledgeBytes) {
        s.unacknowledged = 0;
        if (s.link) write_state(*s.link);
    } else if (!s.acknowledging) {
        s.acknowledging = loop_.later(kAcknowledge, [this, node = s.node] {
            Session* later = find(node);
            later->acknowledging = 0;  // forget() cancels this timer
            if (later->acknowledged < later->handled && later->link) write_state(*later->link);
        });
    }
}

}  // namespace dragon::wire
