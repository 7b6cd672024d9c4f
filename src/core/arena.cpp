#include "arena.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>

#include "layout.hpp"
#include "system_calls.hpp"

namespace dragon {

namespace {

// A thread that finds the arena that another one has just opened must find it complete: it is published with
// release, and read with acquire.
std::atomic<Arena*> current{nullptr};

}  // namespace

// ---- the process's arena

Arena& arena() {
    Arena* a = current.load(std::memory_order_acquire);
    if (!a) throw ObjectDestroyed("this process belongs to no run");
    return *a;
}
bool has_arena() { return current.load(std::memory_order_acquire) != nullptr; }
bool is_current(const Arena* a) { return a && current.load(std::memory_order_acquire) == a; }
void set_arena(Arena* a) { current.store(a, std::memory_order_release); }

// ---- making and mapping

Arena::Mapping Arena::make(uint64_t limit) {
#ifdef __SANITIZE_THREAD__
    // ThreadSanitizer allows few address ranges, none of them as large as the usual mapping.
    limit = std::min(limit, uint64_t{1} << 30);
#endif
    int fd = anonymous_memory("dragon");
    for (uint64_t region = std::bit_ceil(std::max(limit, 64 * kMiB));; region /= 2) {
        if (region < 64 * kMiB) {
            close(fd);
            throw SystemFailure(ENOMEM,
                                "the address space is limited (ulimit -v): no room for the shared memory");
        }
        size_t size = round_up(kMetaStart + kClasses * (region / 4), 2 * kMiB) + kClasses * region;
        if (ftruncate(fd, static_cast<off_t>(size)) != 0) {
            if (region > 64 * kMiB) continue;
            int error = errno;
            close(fd);
            throw SystemFailure(error, "the shared memory cannot be sized (ulimit -f)");
        }
        if (Mapping mapping = map_all(fd, region, size); mapping.base) return mapping;
    }
}

Arena::Arena(Mapping m)
    : fd_(m.fd), base_(m.base), region_(m.region), region_bits_(std::countr_zero(m.region)), size_(m.size) {
    if (m.sparse) be_sparse();
    static std::once_flag once;
    std::call_once(once, [] {
        pthread_atfork(nullptr, nullptr, [] {
            if (has_arena()) arena().after_fork();
            attachments = new Attachments;  // the parent's may be locked
        });
    });
}

void Arena::after_fork() {
    self_.store(0);
    reach_after_fork();
    new (&late_mutex_) std::mutex;  // another thread of the parent may have held it
    late_.clear();                  // the parent owns these blocks
    is_late_ = false;
}

Arena::Arena(uint64_t limit) : Arena(make(limit)) {
    if (allocate_bytes(fd_, 0, round_up(kTables, kPage)) != 0)
        throw OutOfMemory("no memory for the arena's own tables (" + std::to_string(kTables) + " bytes)");
    Header& h = header();
    h.limit = std::min(limit, region_);
    h.region = region_;
    std::random_device random;
    h.id = uint64_t{random()} << 32 | random();
    h.magic = kMagic;
}

Arena* Arena::open(int fd) {
    struct stat st;
    if (fstat(fd, &st) != 0) throw SystemFailure(errno, "fstat");
    auto size = static_cast<size_t>(st.st_size);
    if (size < kMetaStart) throw SystemFailure(EINVAL, "not an arena");
    Mapping mapping = map_all(fd, 0, size);
    if (!mapping.base) throw SystemFailure(ENOMEM, "no addresses for the arena (ulimit -v)");
    auto* h = reinterpret_cast<Header*>(mapping.base);
    if (h->magic != kMagic) {
        munmap(mapping.base, mapping.sparse ? kMetaStart : size);
        throw SystemFailure(EINVAL, "not an arena");
    }
    mapping.region = h->region;
    return new Arena(mapping);
}

uint64_t Arena::id() const { return header().id; }
void Arena::set_keeper(OwnerId owner) { header().keeper = owner; }
bool Arena::keeps() { return header().keeper.load() == self(); }
bool Arena::kept() const {
    OwnerId keeper = header().keeper.load();
    return keeper == 0 || alive(keeper);
}
uint64_t Arena::next_number() { return header().number.fetch_add(1); }

uint64_t Arena::committed() const {
    const Header& h = header();
    uint64_t total = round_up(kTables, kPage);
    for (size_t c = 0; c < kClasses; ++c) {
        const ClassState& s = h.classes[c];
        total += s.committed_meta.load(std::memory_order_relaxed);
        if (uint64_t pages = s.committed.load(std::memory_order_relaxed))
            total += pages - free_blocks(c, true) * class_size(c);
    }
    for (uint32_t i = 0, used = h.slots_used.load(); i < used; ++i)
        total += h.slots[i].reserving.load(std::memory_order_relaxed);
    return total;
}

Usage Arena::usage() const {
    Usage u{header().limit, committed(), 0, 0};
    for (size_t c = 0; c < kClasses; ++c) {
        uint64_t unused = free_blocks(c, false) + free_blocks(c, true);
        uint64_t blocks = std::max(header().classes[c].carved.load(), unused) - unused;
        u.blocks += blocks;
        u.in_use += blocks * class_size(c);
    }
    return u;
}

// ---- size classes: powers of two up to 4 KiB, above that four classes per doubling

size_t Arena::class_of_size(size_t size) {
    if (size <= 64) return 0;
    if (size <= 4096) return static_cast<size_t>(std::bit_width(size - 1)) - 6;
    size_t exponent = static_cast<size_t>(std::bit_width(size - 1)) - 1;
    size_t base = size_t{1} << exponent, step = base / 4;
    return 6 + (exponent - 12) * 4 + (size - base + step - 1) / step;
}

size_t Arena::class_size(size_t c) {
    if (c <= 6) return size_t{64} << c;
    size_t base = size_t{4096} << ((c - 7) / 4);
    return base + base / 4 * ((c - 7) % 4 + 1);
}

Offset Arena::meta_start(size_t c) const { return kMetaStart + c * (region_ / 4); }
Offset Arena::region_start(size_t c) const { return round_up(meta_start(kClasses), 2 * kMiB) + c * region_; }
size_t Arena::class_of(Offset block) const { return (block - region_start(0)) >> region_bits_; }

Meta& Arena::meta(Offset block) const {
    size_t c = class_of(block);
    uint64_t inside = block - region_start(c), index = c <= 6 ? inside >> (6 + c) : inside / class_size(c);
    return *at<Meta>(meta_start(c) + index * sizeof(Meta));
}

Offset Arena::block_at(Offset inside) const {
    size_t c = class_of(inside), size = class_size(c);
    Offset start = region_start(c);
    return start + (inside - start) / size * size;
}

}  // namespace dragon
