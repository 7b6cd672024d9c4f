// The processes of an arena, each in a slot, and the cleanup after a process that has died.
#include <fcntl.h>
#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "channel.hpp"
#include "layout.hpp"
#include "process_handle.hpp"
#include "sync.hpp"

namespace dragon {

namespace {

constexpr Nanoseconds kReaps = 200'000'000;  // how long a process that reaps waits for a lock

}  // namespace

Slot& Arena::slot(OwnerId owner) const { return header().slots[owner & (kSlots - 1)]; }

OwnerId Arena::claim(pid_t pid, uint64_t start_time) {
    Header& h = header();
    uint32_t start = h.slot_hint.load();
    for (uint32_t i = 0; i < kSlots; ++i) {
        uint32_t index = (start + i) % kSlots;
        Slot& s = h.slots[index];
        uint32_t free = kFree;
        if (!s.state.compare_exchange_strong(free, kClaiming | static_cast<uint32_t>(getpid()) << 2))
            continue;
        h.slot_hint.store(index + 1);
        uint32_t used = h.slots_used.load();
        while (used <= index && !h.slots_used.compare_exchange_weak(used, index + 1));
        uint32_t generation = std::max(1u, (s.generation.load() + 1) & kGenerationMask);
        s.generation = generation;
        s.pid = pid;
        s.start_time = start_time;
        s.owned = 0;
        s.attachments = 0;
        s.reserving = 0;
        for (Wait& w : s.waits) w.what = 0;
        s.state = kLive;
        return generation << kSlotBits | index;
    }
    throw OutOfMemory("more than " + std::to_string(kSlots) + " processes use this node's shared memory");
}

OwnerId Arena::self() {
    OwnerId id = self_.load(std::memory_order_relaxed);
    if (id) [[likely]]
        return id;
    char state;
    uint64_t start_time;
    if (process_stat(getpid(), state, start_time) != Look::Found)
        throw SystemFailure(errno, "/proc cannot be read");
    OwnerId claimed = claim(getpid(), start_time);
    if (self_.compare_exchange_strong(id, claimed)) return claimed;
    slot(claimed).state = kFree;  // another thread came first
    return id;
}

OwnerId Arena::reserve_slot() { return claim(0, 0); }

void Arena::fill_slot(OwnerId owner, pid_t pid) {
    char state;
    uint64_t start_time = 0;
    process_stat(pid, state, start_time);
    slot(owner).start_time = start_time;
    slot(owner).pid = pid;
}

void Arena::promise_slot(OwnerId owner, pid_t pid) {
    pid_t none = 0;
    slot(owner).pid.compare_exchange_strong(none, pid);
}

void Arena::take_slot(OwnerId owner) {
    Slot& s = slot(owner);
    pid_t holder = s.pid.load();
    if (reaped(owner) || (holder != 0 && holder != getpid())) return;
    fill_slot(owner, getpid());
    std::lock_guard lock(attachments->mutex);
    for (Offset c = s.attachments; c; c = at<Chunk>(c)->next)
        for (Entry& e : at<Chunk>(c)->entries) {
            if (e.object)
                attachments->entries.emplace(Attachments::Key{e.object, e.generation, e.role(), e.kind()},
                                             &e);
            else
                attachments->free.push_back(&e);
        }
    self_ = owner;
}

bool Arena::reaped(OwnerId owner) const {
    const Slot& s = slot(owner);
    return s.generation.load() != owner >> kSlotBits || s.state.load() != kLive;
}

bool Arena::alive(OwnerId owner) const {
    if (reaped(owner)) return false;
    const Slot& s = slot(owner);
    pid_t pid = s.pid.load();
    if (pid == 0) return true;  // about to be forked
    return !known_to_have_ended(pid, s.start_time.load());
}

pid_t Arena::pid_of(OwnerId owner) const {
    const Slot& s = slot(owner);
    return s.generation.load() == owner >> kSlotBits ? s.pid.load() : 0;
}

size_t Arena::processes(SlotInfo* out, size_t capacity) const {
    size_t n = 0;
    for (uint32_t i = 0; i < header().slots_used.load() && n < capacity; ++i) {
        Slot& s = header().slots[i];
        if (s.state.load() == kLive)
            out[n++] = {s.generation.load() << kSlotBits | i, s.pid.load(),
                        static_cast<uint64_t>(s.owned.load())};
    }
    return n;
}

bool Arena::reap(pid_t pid) {
    bool found = false;
    if (pid <= 0) return false;
    for (uint32_t i = 0; i < header().slots_used.load(); ++i) {
        Slot& s = header().slots[i];
        if (s.pid.load() != pid || s.state.load() != kLive) continue;
        OwnerId owner = s.generation.load() << kSlotBits | i;
        // A process without a start time was promised the slot and died before it took it; its process id may
        // belong to another process by now.
        if (s.start_time.load() == 0 || !alive(owner)) found |= reap_slot(s, owner);
    }
    return found;
}

int Arena::reap_dead() {
    int count = 0;
    for (uint32_t i = 0; i < header().slots_used.load(); ++i) {
        Slot& s = header().slots[i];
        OwnerId owner = s.generation.load() << kSlotBits | i;
        uint32_t state = s.state.load(), claimant_state = state & 3;
        if (claimant_state == kClaiming) {
            if (known_to_have_ended(static_cast<pid_t>(state >> 2), 0))
                s.state.compare_exchange_strong(state, kFree);
        } else if (state == kLive && !alive(owner)) {
            count += reap_slot(s, owner);
        }
    }
    return count;
}

// Every step can be repeated: if a process is killed while it reaps another, the next one continues. If a
// lock that this needs is held by a stopped process, the dead process is left as it is until the next time.
bool Arena::reap_slot(Slot& s, OwnerId owner) {
    struct Reaping {
        SharedLock& lock;
        ~Reaping() { lock.unlock(); }
    };
    Bounded bounded(kReaps);
    try {
        s.reaping.hold(self());
        Reaping reaping{s.reaping};
        if (reaped(owner)) return false;
        // Blocks are freed by owner, so first every block that is reachable from a structure must be marked
        // as the structure's.
        repair_structures(owner);
        release_all(s);
        if (s.owned.load() != 0) free_owned_by(owner);
        fail_tasks(s);
        s.state = kFree;
        return true;
    } catch (const StillLocked&) {
        return false;
    }
}

bool Arena::leave() {
    OwnerId owner = self_.load();
    if (!owner) return true;
    Slot& s = slot(owner);
    std::lock_guard lock(attachments->mutex);
    int64_t chunks = 0;
    for (Offset c = s.attachments; c; c = at<Chunk>(c)->next) ++chunks;
    if (s.owned.load() != chunks) return false;
    attachments->entries.clear();
    attachments->free.clear();
    attachments->late.clear();
    try {
        Bounded bounded(kReaps);
        release_all(s);
    } catch (const StillLocked&) {
        return false;
    }
    fail_tasks(s);
    self_ = 0;
    s.state = kFree;
    return true;
}

void Arena::repair_structures(OwnerId dead) {
    OwnerId me = self();
    for (Guard& guard : header().guards)
        if (guard.lock.settle(dead, me)) Change undone(*this, guard);
    for (size_t c = 0; c < kClasses; ++c) {
        for (size_t n = 0; n < kLists; ++n) {
            FreeList& l = list(n, c);
            if (!l.lock.settle(dead, me)) continue;
            repair(l);
            l.lock.release();
        }
        finish_carving(c);
    }
    bool waited = owns_block_of(dead, class_of_size(Condition::kWaiterSize));
    for (size_t c : {class_of_size(sizeof(Channel)), class_of_size(sizeof(Condition))}) {
        uint64_t carved = header().classes[c].carved.load();
        for (uint64_t i = 0; i < carved; ++i) {
            Offset block = region_start(c) + i * class_size(c);
            auto concerned = [&] {
                if (meta(block).owner != 0) return false;
                switch (meta(block).kind()) {
                    case Kind::Channel:
                        return at<Channel>(block)->concerns(dead);
                    case Kind::Condition:
                        return waited || at<Condition>(block)->concerns(dead);
                    default:
                        return false;
                }
            };
            if (!concerned()) continue;
            Change change(*this, block);  // while this lock is held the object is not freed
            if (!concerned()) continue;
            if (meta(block).kind() == Kind::Channel)
                at<Channel>(block)->recover(*this, dead);
            else
                at<Condition>(block)->recover(*this, dead);
        }
    }
}

bool Arena::owns_block_of(OwnerId owner, size_t c) const {
    const Meta* m = at<Meta>(meta_start(c));
    for (uint64_t i = 0, carved = header().classes[c].carved.load(); i < carved; ++i)
        if (m[i].owner == owner) return true;
    return false;
}

void Arena::free_owned_by(OwnerId dead) {
    std::vector<Offset> left;
    each_block([&](Offset block, Meta& m) {
        if (m.owner == dead && m.kind() != Kind::Free) left.push_back(block);
    });
    // Channels first: the blocks that are linked to them are freed with them.
    for (Offset block : left)
        if (meta(block).kind() == Kind::Channel) at<Channel>(block)->tear_down(*this);
    for (Offset block : left)
        if (meta(block).owner == dead) free(block);
}

}  // namespace dragon
