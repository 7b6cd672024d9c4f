#include "guests.hpp"

#include <algorithm>
#include <cstring>

#include "../core/channel.hpp"
#include "../core/sync.hpp"
#include "parcels.hpp"

namespace dragon::wire {

namespace {

constexpr Nanoseconds kOnceLocked = 1'000'000'000;  // for which operations that do not wait are tried then

Kind kind_of(const Operation& operation) {
    Do what = operation.what;
    if (what < Do::ChannelPut) return operation.kind;
    if (what < Do::LockAcquire) return Kind::Channel;
    if (what < Do::SemaphoreAcquire) return Kind::Lock;
    if (what < Do::EventSet) return Kind::Semaphore;
    if (what < Do::ConditionEnter) return Kind::Event;
    if (what < Do::WordsLength) return Kind::Condition;
    return Kind::Words;
}

// Whether it consumes something, and so must be served in order.
bool in_turn(Do what) {
    return what == Do::ChannelPut || what == Do::ChannelGet || what == Do::LockAcquire ||
           what == Do::SemaphoreAcquire;
}

bool waits(Do what) {
    return in_turn(what) || what == Do::ChannelReadable || what == Do::ChannelWritable ||
           what == Do::ChannelJoin || what == Do::EventWait || what == Do::ConditionSleep ||
           what == Do::WordsWait;
}

// Python's class for what went wrong, and the text.
struct Raised {
    Error error;
};

[[noreturn]] void raise(const char* kind, std::string text) { throw Raised{{kind, std::move(text)}}; }

template <class T>
T& at(const Operation& operation) {
    return *arena().at<T>(operation.object.offset);
}

[[noreturn]] void raise_destroyed(const Operation& operation, const char* what) {
    std::string place = arena().place_of(operation.object.offset);
    raise("DestroyedError",
          std::string("the ") + what + (place.empty() ? "" : " made at " + place) + " was destroyed");
}

std::atomic<uint64_t>& word(const Words& words, uint64_t i) {
    if (i >= words.count()) raise("IndexError", "word index out of range");
    return words.at(static_cast<uint32_t>(i));
}

// Handles the status of a wait for an object: whether it is done.
bool done(const Operation& operation, Status status, const char* what) {
    switch (status) {
        case Status::Ok:
        case Status::Recovered:
            return true;
        case Status::Destroyed:
            raise_destroyed(operation, what);
        case Status::EndOfFile:
            raise("EOFError", "every writing end is closed");
        case Status::Broken:
            raise("OSError 32", "Broken pipe");
        case Status::Busy:
            throw StillLocked();
        default:
            return false;
    }
}

void check_exists(const Operation& operation) {
    if (at<Channel>(operation).destroyed.load()) raise_destroyed(operation, "queue");
}

struct Piece {
    uint64_t start, size;
};

}  // namespace

OwnerId Guests::place(Node node, uint64_t pid) {
    auto [found, fresh] = places_.try_emplace({node, pid}, 0);
    if (fresh) {
        Arena& a = arena();
        found->second = a.reserve_slot();
        a.fill_slot(found->second, getpid());
    }
    return found->second;
}

// Attaches the agent, so that the object exists while it is used. Throws ObjectDestroyed and StillLocked.
void Guests::attach(const Operation& operation) {
    Handle handle = operation.object.handle();
    auto found = attached_.find(handle.offset);
    if (found != attached_.end()) {
        if (found->second.generation == handle.generation &&
            arena().meta(handle.offset).kind() == kind_of(operation))
            return;
        if (arena().exists(found->second)) throw ObjectDestroyed("the object is gone");
        detach(handle.offset);
    }
    // Not as one end of a pipe: the agent is neither its reader nor its writer.
    arena().attach(handle, kind_of(operation), Role::Plain, false);
    attached_[handle.offset] = handle;
}

void Guests::detach(Offset offset) {
    auto found = attached_.find(offset);
    if (found == attached_.end() || waiting_.count(offset)) return;
    Handle handle = found->second;
    attached_.erase(found);
    arena().release_when_possible(handle, Role::Plain);
}

void Guests::announce(Node node, Name name, uint64_t count) {
    // For process 0 of the node: references that are never taken are dropped with the node.
    for (; count > 0; --count) arena().guest_send(place(node, 0), name.handle(), role_of(name.role));
}

void Guests::left(Node node, uint64_t pid) {
    auto found = places_.find({node, pid});
    if (found == places_.end()) return;
    std::vector<uint64_t> numbers;
    for (auto& [number, waiting] : by_number_)
        if (waiting->node == node && waiting->operation.pid == pid) numbers.push_back(number);
    for (uint64_t number : numbers) cancel(number);
    arena().guest_left(found->second);
    places_.erase(found);
    for (auto all = attached_; auto& [offset, handle] : all) detach(offset);
    try_all();
}

void Guests::node_left(Node node) {
    std::vector<uint64_t> pids;
    for (auto it = places_.lower_bound({node, 0}); it != places_.end() && it->first.first == node; ++it)
        pids.push_back(it->first.second);
    for (uint64_t pid : pids) left(node, pid);
}

// ---- performing

uint64_t Guests::perform(Node node, const Operation& operation, Payload payload, Answer answer) {
    if (is_of_shard(operation.what)) {
        answer(shards.perform(operation, payload.view()));
        return 0;
    }
    bool is_local = node == own_node_;
    OwnerId owner = is_local ? operation.owner : place(node, operation.pid);
    Do what = operation.what;
    Offset offset = operation.object.offset;
    bool once = operation.timeout == 0, locked = false;
    Outcome out;
    if (waits(what) && what == Do::ChannelGet && operation.words.offset) {
        // As the worker of a pool that waits has no task.
        Name name = operation.words;
        if (is_a(Kind::Words, name.handle())) word(*arena().at<Words>(name.offset), operation.a).store(0);
    }
    bool behind = waits(what) && !once && is_behind_others(operation, owner);
    if (!behind && attempt(operation, payload, owner, out, locked)) {
        if (is_local || what == Do::Release) detach(offset);
        answer(std::move(out));
        return 0;
    }
    if (once && waits(what) && !locked) {
        if (is_local) detach(offset);
        answer(Outcome::of(false));
        return 0;
    }
    if (payload.size && !payload.keep) payload = Payload::of(std::string(payload.view()));
    auto& list = waiting_[offset];
    list.push_back({++last_, node, operation, std::move(payload), owner, now(), once || !waits(what), false,
                    std::move(answer)});
    Place waiting = std::prev(list.end());
    uint64_t number = waiting->number;
    by_number_[number] = waiting;
    Nanoseconds timeout = once || !waits(what) ? kOnceLocked : operation.timeout;
    if (timeout > 0)
        waiting->timer = loop_.later(timeout, [this, number] {
            auto found = by_number_.find(number);
            if (found == by_number_.end()) return;
            found->second->timer = 0;
            if (waits(found->second->operation.what))
                finish(found->second, Outcome::of(false));
            else
                finish(found->second,
                       Outcome::failed(
                           {"LockedError", "a process that was stopped holds a lock of the object"}));
        });
    if (!locked || attached_.count(offset)) watch(*waiting, true);
    if (locked) retry_later(offset);
    changed(offset);  // it may have changed before it was watched
    return by_number_.count(number) ? number : 0;
}

void Guests::cancel(uint64_t number) {
    auto found = by_number_.find(number);
    if (found == by_number_.end()) return;
    Place waiting = found->second;
    waiting->answer = [](Outcome) {};
    finish(waiting, Outcome::of(false));
}

// Returns whether others wait for the same thing. Who already holds a recursive lock does not wait behind
// them.
bool Guests::is_behind_others(const Operation& operation, OwnerId owner) const {
    auto found = waiting_.find(operation.object.offset);
    if (found == waiting_.end() || !in_turn(operation.what)) return false;
    for (const Waiting& other : found->second) {
        if (other.operation.what != operation.what) continue;
        return operation.what != Do::LockAcquire || !at<Lock>(operation).recursive() ||
               !at<Lock>(operation).is_mine(owner, operation.thread);
    }
    return false;
}

bool Guests::attempt(const Operation& operation, const Payload& payload, OwnerId owner, Outcome& out,
                     bool& locked) {
    try {
        Bounded bounded(kLocked);
        return do_once(operation, payload, owner, out);
    } catch (const StillLocked&) {
        locked = true;
        return false;
    } catch (const OutOfMemory& error) {
        out = Outcome::failed({"MemoryError", error.what()});
    } catch (const ObjectDestroyed& error) {
        out = Outcome::failed({"DestroyedError", error.what()});
    } catch (const NoSuchRole& error) {
        out = Outcome::failed({"ValueError", error.what()});
    } catch (const Raised& raised) {
        out = Outcome::failed(raised.error);
    }
    return true;
}

bool Guests::do_once(const Operation& o, const Payload& payload, OwnerId owner, Outcome& out) {
    Arena& a = arena();
    Handle handle = o.object.handle();
    Role role = role_of(o.object.role);
    auto value = [&](uint64_t number) {
        out = Outcome::of(true, number);
        return true;
    };
    switch (o.what) {
        case Do::Attach:
            a.guest_attach(owner, handle, role);
            return value(0);
        case Do::Send:
            a.guest_send(owner, handle, role);
            return value(0);
        case Do::Release:
            a.guest_release(owner, handle, role);
            return value(0);
        default:
            break;
    }
    attach(o);
    if (o.what == Do::Destroy) {
        switch (o.kind) {
            case Kind::Channel:
                at<Channel>(o).destroy(a);
                break;
            case Kind::Lock:
                at<Lock>(o).destroyed = 1;
                break;
            case Kind::Semaphore:
                at<Semaphore>(o).destroy();
                break;
            case Kind::Event:
                at<Event>(o).destroy();
                break;
            case Kind::Condition:
                at<Condition>(o).destroy(a);
                break;
            default:
                at<Words>(o).destroy();
        }
        return value(0);
    }
    switch (o.what) {
        case Do::ChannelPut:
            if (!done(o, put_message(a, at<Channel>(o), static_cast<uint32_t>(o.a), payload, o.ticket),
                      "queue"))
                return false;
            return value(0);
        case Do::ChannelPutBack:
            done(o, put_message(a, at<Channel>(o), static_cast<uint32_t>(o.a), payload, 0, Side::Front),
                 "queue");
            return value(0);
        case Do::ChannelGet: {
            std::atomic<uint64_t>* taker = nullptr;
            if (o.words.offset) {
                if (!is_a(Kind::Words, o.words.handle()))
                    throw ObjectDestroyed("the words of a pool's workers are gone");
                taker = &word(*a.at<Words>(o.words.offset), o.a);
            }
            Message message;
            if (!done(o, at<Channel>(o).get(a, message, 0, taker), "queue")) return false;
            out.kind = message.label.kind;
            if (message.block) {
                auto block = std::make_shared<Block>(&a, message.block);
                out.payload = {a.at<char>(block->at) + kDataStart, message.label.size, block, block};
            } else {
                out.payload = Payload::of(std::string(message.data, message.label.size));
            }
            return true;
        }
        case Do::ChannelReadable:
            return done(o, at<Channel>(o).wait_readable(0), "queue") && value(0);
        case Do::ChannelWritable:
            check_exists(o);
            return !at<Channel>(o).full() && value(0);
        case Do::ChannelJoin:
            return done(o, at<Channel>(o).join(0), "queue") && value(0);
        case Do::ChannelSize:
            check_exists(o);
            return value(at<Channel>(o).size());
        case Do::ChannelCapacity:
            return value(at<Channel>(o).capacity());
        case Do::ChannelFull:
            check_exists(o);
            return value(at<Channel>(o).full());
        case Do::ChannelTaskDone:
            check_exists(o);
            return value(at<Channel>(o).task_done());
        case Do::LockAcquire: {
            Status status = at<Lock>(o).acquire(owner, o.thread, 0);
            return done(o, status, "lock") && value(status == Status::Recovered);
        }
        case Do::LockRelease:
            switch (at<Lock>(o).release(owner, o.thread)) {
                case Lock::Release::NotLocked:
                    raise("ValueError", "semaphore or lock released too many times");
                case Lock::Release::NotMine:
                    raise("AssertionError", "attempt to release recursive lock not owned by thread");
                default:
                    return value(0);
            }
        case Do::LockIsMine:
            return value(at<Lock>(o).is_mine(owner, o.thread));
        case Do::LockCount:
            return value(at<Lock>(o).count());
        case Do::LockRecursive:
            return value(at<Lock>(o).recursive());
        case Do::LockOwner: {
            OwnerId holder = at<Lock>(o).owner();
            return value(holder ? static_cast<uint64_t>(a.pid_of(holder)) : 0);
        }
        case Do::SemaphoreAcquire:
            return done(o, at<Semaphore>(o).acquire(0), "semaphore") && value(0);
        case Do::SemaphoreRelease:
            if (o.a > UINT32_MAX || !at<Semaphore>(o).release(static_cast<uint32_t>(o.a)))
                raise("ValueError", "semaphore or lock released too many times");
            return value(0);
        case Do::SemaphoreValue:
            return value(at<Semaphore>(o).value());
        case Do::EventSet:
            at<Event>(o).set();
            return value(0);
        case Do::EventClear:
            at<Event>(o).clear();
            return value(0);
        case Do::EventIsSet:
            return value(at<Event>(o).is_set());
        case Do::EventWait:
            return done(o, at<Event>(o).wait(0), "event") && value(0);
        case Do::ConditionEnter:
            return value(at<Condition>(o).enter(a, owner));
        case Do::ConditionLeave:
            return value(at<Condition>(o).leave(a, o.a));
        case Do::ConditionNotify:
            return value(
                at<Condition>(o).notify(a, static_cast<uint32_t>(std::min<uint64_t>(o.a, UINT32_MAX))));
        case Do::ConditionSleep:
            return done(o, at<Condition>(o).sleep(a, o.a, 0), "condition") && value(0);
        case Do::WordsLength:
            return value(at<Words>(o).count());
        case Do::WordsGet:
            return value(word(at<Words>(o), o.a).load());
        case Do::WordsSet:
            word(at<Words>(o), o.a).store(o.b);
            at<Words>(o).changed();
            return value(0);
        case Do::WordsAdd: {
            uint64_t old = word(at<Words>(o), o.a).fetch_add(o.b);
            at<Words>(o).changed();
            return value(old);
        }
        case Do::WordsSwapIf: {
            uint64_t expected = o.b;
            bool swapped = word(at<Words>(o), o.a).compare_exchange_strong(expected, o.c);
            if (swapped) at<Words>(o).changed();
            return value(swapped);
        }
        case Do::WordsWait: {
            auto& waited = word(at<Words>(o), o.a);
            return done(o, at<Words>(o).wait(static_cast<uint32_t>(o.a), o.b, 0), "object") &&
                   value(waited.load());
        }
        case Do::WordsRead: {
            uint64_t size = at<Words>(o).count() * sizeof(uint64_t);
            uint64_t start = std::min(o.a, size), length = std::min(o.b, size - start);
            out.kind = kBytes;
            out.payload = Payload::of({reinterpret_cast<const char*>(&at<Words>(o).at(0)) + start, length});
            return true;
        }
        case Do::WordsWrite: {  // `a` pieces, and then their bytes
            uint64_t size = at<Words>(o).count() * sizeof(uint64_t);
            std::string_view rest = payload.view();
            if (o.a > rest.size() / sizeof(Piece)) raise("ValueError", "pieces are missing");
            auto* memory = reinterpret_cast<char*>(&at<Words>(o).at(0));
            const char* data = rest.data() + o.a * sizeof(Piece);
            uint64_t left = rest.size() - o.a * sizeof(Piece);
            for (uint64_t i = 0; i < o.a; ++i) {
                Piece piece;
                memcpy(&piece, rest.data() + i * sizeof piece, sizeof piece);
                if (piece.size > left || piece.start > size || piece.size > size - piece.start)
                    raise("ValueError", "a piece does not lie in the object");
                memcpy(memory + piece.start, data, piece.size);
                data += piece.size;
                left -= piece.size;
            }
            at<Words>(o).changed();
            return value(0);
        }
        default:
            raise("ValueError", "the agent knows no such operation");
    }
}

// ---- waiting

void Guests::watch(Waiting& waiting, bool on) {
    if (waiting.watched == on) return;
    waiting.watched = on;
    uint32_t change = on ? 1u : UINT32_MAX;
    const Operation& o = waiting.operation;
    switch (kind_of(o)) {
        case Kind::Channel:
            return at<Channel>(o).watch(change);
        case Kind::Lock:
            return at<Lock>(o).watch(change);
        case Kind::Semaphore:
            return at<Semaphore>(o).watch(change);
        case Kind::Event:
            return at<Event>(o).watch(change);
        case Kind::Condition:
            return at<Condition>(o).watch(change);
        case Kind::Words:
            return at<Words>(o).watch(change);
        default:
            return;
    }
}

void Guests::finish(Place waiting, Outcome out) {
    Offset offset = waiting->operation.object.offset;
    bool is_local = waiting->node == own_node_;
    watch(*waiting, false);
    loop_.cancel(waiting->timer);
    Answer answer = std::move(waiting->answer);
    by_number_.erase(waiting->number);
    auto& list = waiting_.at(offset);
    list.erase(waiting);
    if (list.empty()) waiting_.erase(offset);
    if (is_local) detach(offset);  // the agent's own attachment would keep the object alive
    answer(std::move(out));
}

// Tries an operation again. Returns whether it no longer waits.
bool Guests::try_one(Place waiting) {
    Outcome out;
    bool locked = false;
    if (attempt(waiting->operation, waiting->payload, waiting->owner, out, locked)) {
        finish(waiting, std::move(out));
        return true;
    }
    if (locked) {
        retry_later(waiting->operation.object.offset);
        return false;
    }
    if (waiting->once) {
        finish(waiting, Outcome::of(false));
        return true;
    }
    watch(*waiting, true);
    return false;
}

// Tries the operations that wait for an object, in the order of arrival; those of the same kind after one
// that must wait are not tried.
void Guests::changed(Offset offset) {
    auto found = waiting_.find(offset);
    if (found == waiting_.end()) return;
    std::vector<uint64_t> numbers;
    for (const Waiting& waiting : found->second) numbers.push_back(waiting.number);
    std::vector<Do> stuck;
    for (uint64_t number : numbers) {
        auto place = by_number_.find(number);
        if (place == by_number_.end()) continue;
        Do what = place->second->operation.what;
        if (std::find(stuck.begin(), stuck.end(), what) != stuck.end()) continue;
        if (!try_one(place->second) && in_turn(what)) stuck.push_back(what);
    }
}

void Guests::try_all() {
    std::vector<Offset> offsets;
    for (auto& [offset, list] : waiting_) offsets.push_back(offset);
    for (Offset offset : offsets) changed(offset);
}

void Guests::retry_later(Offset offset) {
    if (retries_.count(offset)) return;
    retries_[offset] = loop_.later(kLocked, [this, offset] {
        retries_.erase(offset);
        changed(offset);
    });
}

std::vector<Guests::Parked> Guests::parked() const {
    std::vector<Parked> result;
    for (auto& [offset, list] : waiting_)
        for (const Waiting& waiting : list) {
            const Operation& o = waiting.operation;
            OwnerId holder = o.what == Do::LockAcquire && attached_.count(offset) ? at<Lock>(o).owner() : 0;
            result.push_back(
                {waiting.node, o.pid, o.what, offset, waiting.since, holder ? arena().pid_of(holder) : 0});
        }
    return result;
}

}  // namespace dragon::wire
