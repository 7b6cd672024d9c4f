// Allocation of blocks: from lists of free blocks, or new ones if the lists are empty.
//
// Nothing here waits without limit for another process. A list that is locked is skipped, whoever holds the
// lock. If all are locked, a new block is made; a block that is freed stays its owner's until a list for it
// can be locked. Blocks are made, and pages allocated and returned, without a lock.
#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cstdlib>
#include <cstring>

#include "layout.hpp"
#include "system_calls.hpp"

namespace dragon {

namespace {

constexpr Nanoseconds kPatience = 15'000;             // for a list that another process is about to unlock
constexpr Nanoseconds kPatienceAtLimit = 50'000'000;  // the same, if there is no other memory

uint64_t memory_available() {
    char text[512];
    int fd = ::open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return UINT64_MAX;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return UINT64_MAX;
    text[n] = 0;
    const char* p = strstr(text, "MemAvailable:");
    return p ? strtoull(p + 13, nullptr, 10) * 1024 : UINT64_MAX;
}

std::string no_addresses(size_t size) {
    return "asked for " + std::to_string(size) +
           " bytes of shared memory; this process has no addresses left for them (ulimit -v, RLIMIT_AS)";
}

}  // namespace

FreeList& Arena::list(size_t n, size_t c) const { return header().lists[n][c]; }

uint64_t Arena::free_blocks(size_t c, bool cold) const {
    uint64_t count = 0;
    for (size_t n = 0; n < kLists; ++n) {
        const FreeList& l = list(n, c);
        count += (cold ? l.cold_count : l.free_count).load(std::memory_order_relaxed);
    }
    return count;
}

// ---- pages

// Ensures that the limit allows `length` more bytes, which committed() already includes.
void Arena::make_room(uint64_t length) {
    Header& h = header();
    auto fail = [&](const char* what, uint64_t left) {
        throw OutOfMemory("asked for " + std::to_string(length) + " bytes of shared memory; " + what + " " +
                          std::to_string(left) + " bytes (" + std::to_string(committed() - length) +
                          " in use of " + std::to_string(h.limit) + "); DRAGON_ARENA_SIZE sets the limit");
    };
    if (uint64_t total = committed(); total > h.limit) {
        trim(std::max(total - h.limit, kEnough));
        total = committed();
        if (total > h.limit) fail("the run's limit leaves", h.limit - std::min(h.limit, total - length));
    }
    if (length < kMiB) return;
    uint64_t available = memory_available();
    if (length > available) fail("this machine has left", available);
}

void Arena::take_pages(Offset start, uint64_t length) {
    if (allocate_bytes(fd_, start, length) == 0) return;
    throw OutOfMemory("asked for " + std::to_string(length) +
                      " bytes of shared memory; the system gives no more, it has left " +
                      std::to_string(memory_available()) + " bytes (" + std::to_string(committed()) +
                      " in use of " + std::to_string(header().limit) + "); DRAGON_ARENA_SIZE sets the limit");
}

// Allocates the pages of a class from `from` to `to`. If another process does the same at the same time, both
// ask the kernel for the same pages.
void Arena::grow(std::atomic<uint64_t>& committed, Offset start, uint64_t from, uint64_t to) {
    struct Reserving {
        std::atomic<uint64_t>& bytes;
        uint64_t length;
        Reserving(std::atomic<uint64_t>& bytes, uint64_t length) : bytes(bytes), length(length) {
            bytes.fetch_add(length);
        }
        ~Reserving() { bytes.fetch_sub(length); }
    } reserving(slot(self()).reserving, to - from);
    try {
        make_room(to - from);
        take_pages(start + from, to - from);
    } catch (const OutOfMemory&) {
        if (committed.load() != from) return;
        throw;
    }
    committed.compare_exchange_strong(from, to);
}

// ---- new blocks

// Makes a new block. The next caller completes what a process that was stopped or killed left incomplete
// here.
Offset Arena::carve(size_t c, OwnerId me) {
    ClassState& s = header().classes[c];
    size_t size = class_size(c);
    for (;;) {
        uint64_t index = s.carved.load(), end = (index + 1) * size;
        if (end > region_)
            throw OutOfMemory("no address space left for blocks of " + std::to_string(size) + " bytes");
        while (s.committed_meta.load() < (index + 1) * sizeof(Meta)) {
            uint64_t from = s.committed_meta.load();
            grow(s.committed_meta, meta_start(c), from, from + kPage);
        }
        for (uint64_t from; (from = s.committed.load()) < end;) {
            uint64_t step = std::clamp<uint64_t>(from, 64 * 1024, kMiB);
            uint64_t target = std::min(round_up(std::max(end, from + step), kPage), region_);
            // For large blocks, and near the limit, only what is needed.
            if (size >= kMiB / 2 || committed() + (target - from) > header().limit)
                target = round_up(end, kPage);
            grow(s.committed, region_start(c), from, target);
        }
        Offset block = region_start(c) + index * size;
        slot(me).owned.fetch_add(1);
        // Generations start from a number of the run's own, so that handles of other runs are not accepted as
        // handles of this run.
        bool made = meta(block).make(me, static_cast<uint32_t>(header().id));
        s.carved.compare_exchange_strong(index, index + 1);
        if (made) return block;
        slot(me).owned.fetch_sub(1);
    }
}

// Counts a block that a dead process has made but not counted.
bool Arena::finish_carving(size_t c) {
    ClassState& s = header().classes[c];
    uint64_t index = s.carved.load();
    if (s.committed_meta.load() < (index + 1) * sizeof(Meta)) return false;
    const Meta& m = *at<Meta>(meta_start(c) + index * sizeof(Meta));
    return m.generation() != 0 && s.carved.compare_exchange_strong(index, index + 1);
}

// ---- lists

// Unlinks the first block of a list of free blocks. The caller holds the list's lock.
Offset Arena::take_first(Link& list, Word& count, OwnerId me, Kind kind) {
    Offset block = list;
    Meta& m = meta(block);
    slot(me).owned.fetch_add(1, std::memory_order_relaxed);
    m.owner = me;
    m.set(m.generation(), kind);
    list = m.next;
    count.store(count.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
    return block;
}

void Arena::put_first(Link& list, Word& count, Offset block, Meta& m) {
    OwnerId owner = m.owner;
    m.next = list;
    list = block;
    m.set(m.generation() + 1, Kind::Free);
    m.owner = 0;
    count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (owner) slot(owner).owned.fetch_sub(1, std::memory_order_relaxed);
}

// Whatever the dead process was doing, the blocks that are linked are free. The caller holds the list's lock.
void Arena::repair(FreeList& l) {
    uint32_t counts[2] = {0, 0};
    for (size_t i : {0, 1})
        for (Offset b = i ? l.cold : l.free; b; b = meta(b).next) {
            Meta& m = meta(b);
            if (m.kind() != Kind::Free) m.set(m.generation() + 1, Kind::Free);
            m.owner = 0;
            ++counts[i];
        }
    l.free_count = counts[0];
    l.cold_count = counts[1];
}

// Returns a block from the lists of the class; 0 if there is none or other processes have the lists locked.
Offset Arena::take_free(size_t c, OwnerId me, bool cold) {
    size_t first = hints_[c].load(std::memory_order_relaxed);
    for (Nanoseconds end = 0;;) {
        bool busy = false;
        for (size_t i = 0; i < kLists; ++i) {
            size_t n = (first + i) % kLists;
            FreeList& l = list(n, c);
            Link& link = cold ? l.cold : l.free;
            if (!link) continue;
            if (!l.lock.try_lock(me)) {
                busy = true;
                continue;
            }
            Offset block = 0;
            if (link)
                block =
                    take_first(link, cold ? l.cold_count : l.free_count, me, cold ? Kind::Cold : Kind::Data);
            l.lock.release();
            if (!block) continue;
            if (i) hints_[c].store(static_cast<uint8_t>(n), std::memory_order_relaxed);
            return block;
        }
        if (!busy) return 0;
        Nanoseconds time = now();
        if (!end)
            end = time + kPatience;
        else if (time >= end)
            return 0;
    }
}

bool Arena::try_to_put_back(Offset block, Meta& m, size_t c, bool cold) {
    size_t first = hints_[c].load(std::memory_order_relaxed);
    OwnerId me = self();
    for (size_t i = 0; i < kLists; ++i) {
        size_t n = (first + i) % kLists;
        FreeList& l = list(n, c);
        if (!l.lock.try_lock(me)) continue;
        put_first(cold ? l.cold : l.free, cold ? l.cold_count : l.free_count, block, m);
        l.lock.release();
        if (i) hints_[c].store(static_cast<uint8_t>(n), std::memory_order_relaxed);
        return true;
    }
    return false;
}

void Arena::put_back(Offset block, bool cold) {
    Meta& m = meta(block);
    size_t c = class_of(block);
    if (try_to_put_back(block, m, c, cold)) return;
    for (Nanoseconds end = now() + kPatience; now() < end;)
        if (try_to_put_back(block, m, c, cold)) return;
    // This process becomes the owner, so that reap() finds the block if the process dies, and the block is no
    // longer an object.
    if (m.owner != self()) adopt(block);
    m.set(m.generation() + 1, cold ? Kind::Cold : Kind::Data);
    std::lock_guard held(late_mutex_);
    late_.push_back(block);
    is_late_ = true;
}

void Arena::put_back_late() {
    std::lock_guard held(late_mutex_);
    std::erase_if(late_, [&](Offset block) {
        Meta& m = meta(block);
        return try_to_put_back(block, m, class_of(block), m.kind() == Kind::Cold);
    });
    is_late_ = !late_.empty();
}

// ---- the interface

Offset Arena::take_any(size_t c, OwnerId me) {
    if (is_late_.load(std::memory_order_relaxed)) [[unlikely]]
        put_back_late();
    if (Offset block = take_free(c, me, false)) return block;
    if (Offset block = take_free(c, me, true)) {
        warm(block, c);
        return block;
    }
    return carve(c, me);
}

// Allocates the pages of a cold block.
void Arena::warm(Offset block, size_t c) {
    try {
        make_room(class_size(c));
        take_pages(block, class_size(c));
    } catch (...) {
        put_back(block, true);
        throw;
    }
    Meta& m = meta(block);
    m.set(m.generation(), Kind::Data);
}

Offset Arena::allocate(size_t size) {
    OwnerId me = self();
    Header& h = header();
    size_t c = class_of_size(size);
    if (c >= kClasses || class_size(c) > h.limit)
        throw OutOfMemory("asked for " + std::to_string(size) +
                          " bytes of shared memory; the run's limit is " + std::to_string(h.limit) +
                          "; DRAGON_ARENA_SIZE sets it");
    Offset block = 0;
    for (Nanoseconds end = 0; !block;) {
        try {
            block = take_any(c, me);
        } catch (const OutOfMemory&) {
            // Retry while there are free blocks in lists that other processes have locked.
            if (!has_warm(size)) throw;
            Nanoseconds time = now();
            if (!end) end = time + kPatienceAtLimit;
            if (time >= end) throw;
            usleep(100);
        }
    }
    if (sparse_ && !try_to_reach(block)) {
        put_back(block, false);
        throw OutOfMemory(no_addresses(size));
    }
    return block;
}

void Arena::free(Offset block) {
    if (is_late_.load(std::memory_order_relaxed)) [[unlikely]]
        put_back_late();
    size_t c = class_of(block), size = class_size(c);
    bool cold = meta(block).kind() == Kind::Cold;
    // Free large blocks keep their pages up to kKeepWarm bytes per class.
    if (cold || (size >= kMiB && (free_blocks(c, false) + 1) * size > kKeepWarm))
        cold = give_pages_back(block) || cold;
    put_back(block, cold);
}

// The block is marked as cold before its pages are returned, so that a block without pages is never taken for
// a warm one.
bool Arena::give_pages_back(Offset block) {
    Meta& m = meta(block);
    m.set(m.generation(), Kind::Cold);
    if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(block),
                  static_cast<off_t>(class_size(class_of(block)))) == 0)
        return true;
    m.set(m.generation(), Kind::Data);
    return false;
}

bool Arena::has_warm(size_t size) const {
    size_t c = class_of_size(size);
    if (c >= kClasses) return false;
    size_t first = hints_[c].load(std::memory_order_relaxed);
    for (size_t i = 0; i < kLists; ++i)
        if (list((first + i) % kLists, c).free) return true;
    return false;
}

void Arena::adopt(Offset block) {
    OwnerId me = self();
    slot(me).owned.fetch_add(1, std::memory_order_relaxed);
    meta(block).owner = me;
}

void Arena::disown(Offset block) {
    Meta& m = meta(block);
    OwnerId owner = m.owner;
    if (!owner) return;
    m.owner = 0;
    slot(owner).owned.fetch_sub(1, std::memory_order_relaxed);
}

uint64_t Arena::trim(uint64_t enough) {
    uint64_t freed = 0;
    OwnerId me = self();
    for (size_t c = kClasses; c-- > 0;) {     // the largest first, for the fewest system calls
        if (class_size(c) % kPage) continue;  // such blocks share pages with blocks in use
        while (freed < enough) {
            Offset block = take_free(c, me, false);
            if (!block) break;
            bool gone = give_pages_back(block);
            put_back(block, gone);
            if (!gone) break;
            freed += class_size(c);
        }
    }
    return freed;
}

}  // namespace dragon
