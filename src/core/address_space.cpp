// How a process maps the arena. Usually it maps all of it at once: a range of addresses many times as large
// as the memory, so that every size class can grow to the limit. If the address space of the process is
// limited (ulimit -v, RLIMIT_AS), that range would count against the limit. Then only the parts in use are
// mapped, each at its first use and at its place in the range. The range is at an address where the system
// places nothing by itself.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <unordered_set>

#include "arena.hpp"
#include "layout.hpp"

namespace dragon {

namespace {

constexpr uint64_t kPlaces[] = {0x2000'0000'0000, 0x2800'0000'0000, 0x1800'0000'0000, 0x0800'0000'0000};
constexpr uint64_t kEndOfPlaces = 0x5000'0000'0000;
constexpr size_t kOneByOne = kMiB;  // blocks of at least this many bytes are mapped one by one
constexpr size_t kStep = 256 * 1024;
constexpr size_t kSpare = 32 * kMiB;

char* map(int fd, char* at, Offset offset, size_t size, int how) {
    void* place = mmap(at, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | how, fd,
                       static_cast<off_t>(offset));
    if (place == MAP_FAILED) return nullptr;
    if ((how & MAP_FIXED_NOREPLACE) && place != at) {  // this kernel does not know MAP_FIXED_NOREPLACE
        munmap(place, size);
        return nullptr;
    }
    madvise(place, size, MADV_DONTDUMP);
    return static_cast<char*>(place);
}

}  // namespace

// The parts of the arena that are mapped: those of each class up to an end, and single blocks beyond.
struct Arena::Reach {
    struct Part {
        std::atomic<Offset> end{0};
    };
    std::mutex mutex;
    Part metas[kClasses], blocks[kClasses];
    std::unordered_set<Offset> single;
    void* spare = nullptr;  // a range of addresses in reserve, for when no others are left

    void keep_spare() {
        if (spare) return;
        spare = mmap(nullptr, kSpare, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (spare == MAP_FAILED) spare = nullptr;
    }
    bool give_spare() {
        if (!spare) return false;
        munmap(spare, kSpare);
        spare = nullptr;
        return true;
    }
};

bool address_space_is_limited() {
    rlimit limit{};
    return getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

Arena::Mapping Arena::map_all(int fd, uint64_t region, size_t size) {
    if (!address_space_is_limited())
        if (char* base = map(fd, reinterpret_cast<char*>(kPlaces[0]), 0, size, 0))
            return {fd, base, region, size, false};
    for (uint64_t place : kPlaces) {
        if (place + size > kEndOfPlaces) continue;
        char* base = map(fd, reinterpret_cast<char*>(place), 0, kMetaStart, MAP_FIXED_NOREPLACE);
        if (base) return {fd, base, region, size, true};
    }
    return {fd, nullptr, region, size, false};
}

void Arena::be_sparse() {
    reach_ = new Reach;
    for (size_t c = 0; c < kClasses; ++c) {
        reach_->metas[c].end = meta_start(c);
        reach_->blocks[c].end = region_start(c);
    }
    reach_->keep_spare();
    sparse_ = true;
}

// Unmaps everything that is not in use.
void Arena::shrink_mapping() {
    if (sparse_) return;
    reach_ = new Reach;
    std::lock_guard held(reach_->mutex);
    auto shrink = [&](Reach::Part& part, Offset start, uint64_t used, size_t size) {
        part.end = start + std::min<uint64_t>(round_up(used, kPage), size);
        sparse_ = true;
        if (uint64_t rest = start + size - part.end) munmap(base_ + part.end, rest);
    };
    for (size_t c = 0; c < kClasses; ++c) {
        const ClassState& s = header().classes[c];
        shrink(reach_->metas[c], meta_start(c), s.committed_meta.load(), region_ / 4);
        shrink(reach_->blocks[c], region_start(c), s.committed.load(), region_);
    }
    Offset end_of_metas = meta_start(kClasses);
    if (uint64_t gap = region_start(0) - end_of_metas) munmap(base_ + end_of_metas, gap);
    reach_->keep_spare();
}

void Arena::reach_after_fork() {
    if (reach_) new (&reach_->mutex) std::mutex;  // another thread of the parent may have held it
}

// Maps the block or table entry at an offset if it is not mapped yet. Returns false if no addresses are left.
bool Arena::try_to_reach(Offset offset) const {
    if (offset < kMetaStart) return true;
    bool is_meta = offset < region_start(0);
    Offset first = is_meta ? kMetaStart : region_start(0);
    uint64_t width = is_meta ? region_ / 4 : region_;
    size_t c = (offset - first) >> std::countr_zero(width);
    if (c >= kClasses) return true;
    Offset start = first + c * width;
    Reach::Part& part = (is_meta ? reach_->metas : reach_->blocks)[c];
    size_t size = is_meta ? sizeof(Meta) : class_size(c);
    // The last block that begins before the end of the mapping may not be mapped completely.
    if (offset + size <= part.end.load(std::memory_order_acquire)) return true;

    Offset block = start + (offset - start) / size * size, end = std::min(block + size, start + width);
    std::lock_guard held(reach_->mutex);
    if (end <= part.end.load()) return true;
    auto add = [&](Offset from, Offset to) {
        auto mapped = [&] { return map(fd_, base_ + from, from, to - from, MAP_FIXED_NOREPLACE) != nullptr; };
        return mapped() || (errno == ENOMEM && reach_->give_spare() && mapped());
    };
    if (!is_meta && size >= kOneByOne) {
        if (reach_->single.count(block)) return true;
        Offset from = std::max(block / kPage * kPage, part.end.load());
        if (!add(from, round_up(end, kPage))) return false;
        reach_->single.insert(block);
        return true;
    }
    const ClassState& s = header().classes[c];
    uint64_t used = is_meta ? s.committed_meta.load() : s.committed.load();
    Offset to = std::min(round_up(std::max(end, start + used), kStep), start + width);
    if (!add(part.end, to)) {
        to = round_up(end, kPage);
        if (!add(part.end, to)) return false;
    }
    part.end.store(to, std::memory_order_release);
    return true;
}

void Arena::reach(Offset offset) const {
    if (try_to_reach(offset)) return;
    // A shared lock may be held here, so that this cannot be raised as an error of the operation.
    constexpr char kText[] =
        "dragon: this process has no addresses left for the run's shared memory (ulimit -v, RLIMIT_AS); it "
        "ends\n";
    [[maybe_unused]] ssize_t written = write(2, kText, sizeof kText - 1);
    _exit(1);
}

}  // namespace dragon
