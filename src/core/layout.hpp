// How the arena's own tables lie in it. For the files of this folder alone.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <map>
#include <vector>

#include "arena.hpp"

namespace dragon {

inline constexpr uint64_t kMagic = 0x33616e65'72616764;
inline const auto kPage = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
inline constexpr uint64_t kMiB = 1 << 20;
inline constexpr uint64_t kKeepWarm = 256 * kMiB;  // freed large blocks of one class that keep their pages
inline constexpr uint64_t kEnough = 64 * kMiB;     // what is taken back at once where the limit is reached
inline constexpr int kSlotBits = 13;
inline constexpr uint32_t kGenerationMask = (1u << (kOwnerBits - kSlotBits)) - 1;
inline constexpr Offset kMetaStart = 2 * kMiB;
inline constexpr uint64_t kOneInFlight = uint64_t{1} << 32;  // see Object

enum SlotState : uint32_t {
    kFree,
    kLive,
    kClaiming
};  // with the claiming process's id above the lowest 2 bits
enum EntryKind : uint32_t { kAttached = 1, kInFlight = 2, kAttachedAhead = 3 };

inline uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }
// One attachment of a process, in a table in the arena that reap() reads when the process is dead.
struct Entry {
    Link object;
    uint32_t generation;
    uint32_t role_and_kind;
    Role role() const { return static_cast<Role>(role_and_kind & 0xff); }
    uint32_t kind() const { return role_and_kind >> 8; }
    void set(Handle handle, Role role, uint32_t kind) {
        generation = handle.generation;
        role_and_kind = static_cast<uint32_t>(role) | kind << 8;
        object = handle.offset;
    }
};

struct Chunk {
    static constexpr size_t kEntries = 63;
    Link next;
    uint64_t unused = 0;
    Entry entries[kEntries] = {};
};

// This process's own view of its table of attachments.
struct Attachments {
    struct Key {
        Offset object;
        uint32_t generation;
        Role role;
        uint32_t kind;
        auto operator<=>(const Key&) const = default;
    };
    PatientMutex mutex;
    std::multimap<Key, Entry*> entries;
    std::vector<Entry*> free;
    size_t next_sweep = Chunk::kEntries;
    std::atomic<bool> is_late{false};
    std::vector<std::pair<Handle, Role>> late;  // released, when the lock for that is free again

    Entry* take(const Key& key) {
        auto found = entries.find(key);
        if (found == entries.end()) return nullptr;
        Entry* entry = found->second;
        entries.erase(found);
        return entry;
    }
};

extern Attachments* attachments;

// Free blocks of one size class. Each class has several such lists: whoever finds one locked takes the next,
// so that nobody waits for a process that was stopped in the middle. The lock of one whose holder died is
// left to reap().
struct alignas(64) FreeList {
    SharedLock lock;
    Word free_count, cold_count;
    Link free;
    Link cold;  // blocks whose pages were given back
};
inline constexpr size_t kLists = 4;

struct ClassState {
    std::atomic<uint64_t> carved;
    std::atomic<uint64_t> committed, committed_meta;  // up to here pages were taken
};

// What a thread of a process waits for. Written before it sleeps, for whoever looks at a run that hangs.
struct Wait {
    static constexpr int kPurposeShift = 56;  // offsets are below
    static constexpr uint64_t kObject = (uint64_t{1} << kPurposeShift) - 1;
    std::atomic<uint64_t> what{0};  // the object and the purpose; 0: nothing
    std::atomic<Nanoseconds> since{0};
    std::atomic<uint64_t> thread{0};
};

struct alignas(64) Slot {
    Word state, generation;
    std::atomic<pid_t> pid;
    SharedLock reaping;
    std::atomic<uint64_t> start_time;
    std::atomic<int64_t> owned;  // blocks that the process owns, or a few more
    Link attachments;
    std::atomic<uint64_t> reserving;  // bytes of pages that it is about to take
    Wait waits[3];                    // those of further threads are not noted
};
static_assert(sizeof(Slot) == 128);

// What an object and an entry were before the change that is being made to them.
struct Undo {
    Link object;  // none: no change is being made
    uint64_t references, ends[2];
    OwnerId owner;
    uint32_t generation_and_kind;
    Offset entry, entry_object;
    uint32_t entry_generation, entry_role_and_kind;
};

// Held while references to an object change. Objects share them by their offsets.
struct alignas(128) Guard {
    SharedLock lock;
    Undo undo;
};
inline constexpr size_t kGuards = 128;

// A wait that is over, or something else that took a while: noted while somebody traces the run.
struct Span {
    std::atomic<uint64_t> number{0};  // from 1 on; another one is under way while it is 0
    std::atomic<uint64_t> what, thread;
    std::atomic<Nanoseconds> start, end;
    std::atomic<pid_t> pid;
    std::atomic<uint32_t> kind;
};

struct Header {
    uint64_t magic, id, limit, region;
    std::atomic<uint64_t> number;
    std::atomic<Nanoseconds> inquiry;  // until then somebody asks what waits
    Word slots_used, slot_hint, keeper, queues;
    ClassState classes[kClasses];
    FreeList lists[kLists][kClasses];
    Guard guards[kGuards];
    Word tracing;
    std::atomic<uint64_t> spans_noted;
    Slot slots[kSlots];
    Span spans[kSpans];  // the newest; memory is taken for it only where something was traced
};
static_assert(sizeof(Header) <= kMetaStart);
// What every arena takes for itself.
inline constexpr size_t kTables = offsetof(Header, spans);

// A change of an object's references together with the entry that records it. A process that is killed in
// between leaves it undone.
struct Arena::Change {
    Arena& a;
    Guard& guard;
    Undo& undo;
    Change(Arena& arena, Offset object, Nanoseconds limit = kForever)
        : a(arena), guard(arena.guard_of(object)), undo(guard.undo) {
        if (guard.lock.hold(a.self(), limit)) roll_back();
    }
    // The lock was taken from a process that died.
    Change(Arena& arena, Guard& guard) : a(arena), guard(guard), undo(guard.undo) { roll_back(); }
    Change(const Change&) = delete;
    ~Change() { guard.lock.unlock(); }

    void begin(Offset object, Entry* entry) {
        const Object& o = *a.at<Object>(object);
        const Meta& m = a.meta(object);
        undo.references = o.references.load();
        for (size_t i : {0, 1}) undo.ends[i] = o.ends[i].load();
        undo.owner = m.owner;
        undo.generation_and_kind = m.generation_and_kind;
        undo.entry = entry ? static_cast<Offset>(reinterpret_cast<char*>(entry) - a.base_) : 0;
        if (entry) {
            undo.entry_object = entry->object;
            undo.entry_generation = entry->generation;
            undo.entry_role_and_kind = entry->role_and_kind;
        }
        undo.object = object;
    }
    void commit() { undo.object = 0; }
    void roll_back() {
        if (undo.object) restore();
        guard.lock.repaired();
    }

  private:
    void restore() {
        Object& o = *a.at<Object>(undo.object);
        Meta& m = a.meta(undo.object);
        o.references = undo.references;
        for (size_t i : {0, 1}) o.ends[i] = undo.ends[i];
        m.owner = undo.owner;
        m.generation_and_kind = undo.generation_and_kind;
        if (undo.entry) {
            Entry& entry = *a.at<Entry>(undo.entry);
            entry.generation = undo.entry_generation;
            entry.role_and_kind = undo.entry_role_and_kind;
            entry.object = undo.entry_object;
        }
        undo.object = 0;
    }
};

// Calls `visit` with every block that was ever made and what is known of it.
template <class Visit>
void Arena::each_block(Visit visit) const {
    for (size_t c = 0; c < kClasses; ++c) {
        uint64_t carved = header().classes[c].carved.load(), size = class_size(c);
        Meta* m = at<Meta>(meta_start(c));
        for (Offset block = region_start(c), end = block + carved * size; block < end; block += size)
            visit(block, *m++);
    }
}

}  // namespace dragon
