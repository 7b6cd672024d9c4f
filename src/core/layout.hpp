// The layout of the arena's own tables. Only for the files of this folder.
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
inline constexpr uint64_t kKeepWarm = 256 * kMiB;  // bytes of free large blocks per class that keep pages
inline constexpr uint64_t kEnough = 64 * kMiB;  // bytes that are reclaimed at least when the limit is reached
inline constexpr int kSlotBits = 13;
inline constexpr uint32_t kGenerationMask = (1u << (kOwnerBits - kSlotBits)) - 1;
inline constexpr Offset kMetaStart = 2 * kMiB;
inline constexpr uint64_t kOneInFlight = uint64_t{1} << 32;  // one message, in the counts of Object

enum SlotState : uint32_t {
    kFree,
    kLive,
    kClaiming
};  // with kClaiming, the bits above the lowest 2 hold the pid of the claiming process
enum EntryKind : uint32_t { kAttached = 1, kInFlight = 2, kAttachedAhead = 3 };

inline uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }
// One attachment of a process. It is in a table in the arena, which reap() reads when the process is dead.
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

// This process's index of its table of attachments.
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
    std::vector<std::pair<Handle, Role>> late;  // to be released once the lock of the object is free

    Entry* take(const Key& key) {
        auto found = entries.find(key);
        if (found == entries.end()) return nullptr;
        Entry* entry = found->second;
        entries.erase(found);
        return entry;
    }
};

extern Attachments* attachments;

// Free blocks of one size class. Each class has several such lists: a process that finds one locked takes the
// next, so that no process waits for one that was stopped while it held the lock. If the holder of the lock
// died, only reap() unlocks and repairs the list.
struct alignas(64) FreeList {
    SharedLock lock;
    Word free_count, cold_count;
    Link free;
    Link cold;  // blocks whose pages were returned to the kernel
};
inline constexpr size_t kLists = 4;

struct ClassState {
    std::atomic<uint64_t> carved;
    std::atomic<uint64_t> committed, committed_meta;  // bytes for which pages are allocated
};

// What a thread of a process waits for, or the task that it runs. Written before the thread sleeps, so that a
// run that hangs can be inspected.
struct Wait {
    static constexpr int kPurposeShift = 56;  // the bits below hold the offset of the object
    static constexpr uint64_t kObject = (uint64_t{1} << kPurposeShift) - 1;
    std::atomic<uint64_t> what{0};  // the object or task, and the purpose; 0: this place is free
    std::atomic<Nanoseconds> since{0};
    std::atomic<uint64_t> thread{0};

    bool is_task() const;
    void clear() {
        since.store(0, std::memory_order_relaxed);
        what.store(0, std::memory_order_release);
    }
};

inline Purpose purpose_of(uint64_t what) { return static_cast<Purpose>(what >> Wait::kPurposeShift); }
inline bool Wait::is_task() const { return purpose_of(what.load()) == Purpose::Task; }

struct alignas(64) Slot {
    Word state, generation;
    std::atomic<pid_t> pid;
    SharedLock reaping;
    std::atomic<uint64_t> start_time;
    std::atomic<int64_t> owned;  // number of blocks that the process owns, or slightly more
    Link attachments;
    std::atomic<uint64_t> reserving;  // bytes of pages that it is about to allocate
    Wait waits[3];                    // waits of further threads are not recorded
};
static_assert(sizeof(Slot) == 128);

// The state of an object and an entry before the change that is in progress.
struct Undo {
    Link object;  // 0: no change is in progress
    uint64_t references, ends[2];
    OwnerId owner;
    uint32_t generation_and_kind;
    Offset entry, entry_object;
    uint32_t entry_generation, entry_role_and_kind;
};

// Its lock is held while references to an object change. Each guard serves many objects, chosen by their
// offsets.
struct alignas(128) Guard {
    SharedLock lock;
    Undo undo;
};
inline constexpr size_t kGuards = 128;

// A wait that has ended, or another operation with a duration. Recorded while the run is traced.
struct Span {
    std::atomic<uint64_t> number{0};  // from 1 on; 0 while a process writes this span
    std::atomic<uint64_t> what, thread;
    std::atomic<Nanoseconds> start, end;
    std::atomic<pid_t> pid;
    std::atomic<uint32_t> kind;
};

// A place in a program at which objects were made. It is written once. A process that is killed while it
// writes one leaves it unused.
struct Place {
    enum : uint32_t { kUnused, kWriting, kReady };
    Word state;
    char text[60];
};

struct Header {
    uint64_t magic, id, limit, region;
    std::atomic<uint64_t> number;
    std::atomic<Nanoseconds> inquiry;  // until this time, waiting processes report themselves
    Word slots_used, slot_hint, keeper, queues;
    std::atomic<Offset> desk;
    Word desk_generation;
    ClassState classes[kClasses];
    FreeList lists[kLists][kClasses];
    Guard guards[kGuards];
    Word tracing;
    std::atomic<uint64_t> spans_noted;
    Place places[kMadeAt];
    Slot slots[kSlots];
    Span spans[kSpans];  // the newest spans; memory is allocated for them only in runs that were traced
};
static_assert(sizeof(Header) <= kMetaStart);
// Bytes of the tables that every arena needs.
inline constexpr size_t kTables = offsetof(Header, spans);

// A change of an object's references together with the entry that records it. If a process is killed during
// the change, the next holder of the lock rolls it back.
struct Arena::Change {
    Arena& a;
    Guard& guard;
    Undo& undo;
    Change(Arena& arena, Offset object, Nanoseconds limit = kForever)
        : a(arena), guard(arena.guard_of(object)), undo(guard.undo) {
        if (guard.lock.hold(a.self(), limit)) roll_back();
    }
    // For a lock that was taken over from a process that died.
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

// Calls `visit` with the offset and the Meta of every block that was ever made.
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
