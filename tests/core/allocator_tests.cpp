// Tests of the allocator: size classes, reuse of blocks, the limit, and trim().
#include <sys/mman.h>

#include <set>
#include <thread>

#include "core_test.hpp"

namespace dragon {
namespace {

TEST(class_of_size_matches_class_size) {
    size_t last = 0;
    for (size_t c = 0; c < kClasses; ++c) {
        CHECK(Arena::class_size(c) > last);
        CHECK(Arena::class_of_size(Arena::class_size(c)) == c);
        CHECK(Arena::class_of_size(last + 1) == c);
        last = Arena::class_size(c);
    }
    CHECK(Arena::class_of_size(0) == 0);
}

TEST(freed_block_is_reused_with_new_generation) {
    Arena& a = new_arena();
    for (size_t size : {size_t{1}, size_t{4096}, size_t{5000}, 3 * kMiB}) {
        Offset block = a.allocate(size);
        CHECK(a.capacity(block) >= size);
        memset(a.at<char>(block), 1, size);
        uint64_t committed = a.usage().committed;
        uint32_t generation = a.meta(block).generation();
        a.free(block);
        CHECK(a.has_warm(size));
        CHECK(a.allocate(size) == block);
        CHECK(a.meta(block).generation() != generation);
        CHECK(a.usage().committed == committed);
        a.free(block);
    }
    CHECK(a.usage().blocks == 0);
    CHECK(a.usage().in_use == 0);
}

TEST(out_of_memory_error_names_size_limit_and_usage) {
    Arena& a = new_arena(64 * kMiB);
    std::vector<Offset> held;
    std::string text;
    try {
        for (;;) held.push_back(a.allocate(kMiB));
    } catch (const OutOfMemory& e) {
        text = e.what();
    }
    CHECK(held.size() >= 60 && held.size() < 64);
    CHECK(text.find(std::to_string(kMiB)) != std::string::npos);
    CHECK(text.find(std::to_string(64 * kMiB)) != std::string::npos);
    CHECK(text.find(std::to_string(a.usage().committed)) != std::string::npos);
    CHECK(text.find("DRAGON_ARENA_SIZE") != std::string::npos);
    CHECK(a.usage().committed <= 64 * kMiB);
    try {
        a.allocate(100 * kMiB);
        CHECK(false);
    } catch (const OutOfMemory& e) {
        CHECK(std::string(e.what()).find(std::to_string(100 * kMiB)) != std::string::npos);
    }
    for (Offset block : held) a.free(block);
    a.free(a.allocate(20 * kMiB));  // takes the pages of the freed blocks
}

TEST(small_blocks_fill_memory_up_to_the_limit) {
    Arena& a = new_arena(3 * kMiB);
    uint64_t count = 0;
    try {
        for (;; ++count) a.allocate(4096);
    } catch (const OutOfMemory&) {
    }
    CHECK(a.usage().limit - a.usage().committed < 3 * kPage);
    CHECK(count * 4096 > kMiB + kMiB / 2);
}

TEST(trim_returns_pages_and_trimmed_blocks_are_reused) {
    Arena& a = new_arena();
    Offset first = a.allocate(4 * kMiB), second = a.allocate(4 * kMiB);
    memset(a.at<char>(first), 1, 4 * kMiB);
    uint64_t committed = a.usage().committed;
    a.free(first);
    CHECK(a.trim() == 4 * kMiB);
    CHECK(a.trim() == 0);
    CHECK(a.usage().committed == committed - 4 * kMiB);
    CHECK(!a.has_warm(4 * kMiB));
    CHECK(a.allocate(4 * kMiB) == first);
    CHECK(a.at<char>(first)[12345] == 0);
    CHECK(a.usage().committed == committed);
    a.free(first);
    a.free(second);
    CHECK(a.usage().blocks == 0);
}

TEST(free_returns_pages_of_many_large_blocks) {
    Arena& a = new_arena(1024 * kMiB);
    std::vector<Offset> held;
    for (int i = 0; i < 20; ++i) held.push_back(a.allocate(16 * kMiB));
    for (Offset block : held) a.free(block);
    CHECK(a.usage().committed < 260 * kMiB);
    CHECK(a.usage().blocks == 0);
    std::set<Offset> again;
    for (int i = 0; i < 20; ++i) CHECK(again.insert(a.allocate(16 * kMiB)).second);
    CHECK(a.usage().in_use == 320 * kMiB);
}

TEST(concurrent_threads_get_distinct_blocks) {
    Arena& a = new_arena();
    std::vector<std::thread> threads;
    for (uint64_t t = 1; t <= 4; ++t)
        threads.emplace_back([&a, t] {
            std::vector<Offset> held;
            for (uint64_t i = 0; i < 4000; ++i) {
                Offset block = a.allocate(64 << i % 3);
                *a.at<uint64_t>(block) = t;
                held.push_back(block);
                if (i % 3) continue;
                CHECK(*a.at<uint64_t>(held.front()) == t);
                a.free(held.front());
                held.erase(held.begin());
            }
            for (Offset block : held) {
                CHECK(*a.at<uint64_t>(block) == t);
                a.free(block);
            }
        });
    for (auto& t : threads) t.join();
    CHECK(a.usage().blocks == 0);
}

TEST(open_accepts_only_descriptors_of_arenas) {
    Arena& a = new_arena();
    auto c = new_channel();
    CHECK(put(*c, 3) == Status::Ok);
    Arena* other = Arena::open(a.fd());
    CHECK(other->id() == a.id());
    CHECK(other->at<Channel>(c.handle.offset)->size() == 1);
    int nothing = memfd_create("nothing", 0);
    CHECK(ftruncate(nothing, 4 * kMiB) == 0);
    for (int fd : {nothing, 987}) {
        try {
            Arena::open(fd);
            CHECK(false);
        } catch (const SystemFailure& e) {
            CHECK(e.error == (fd == nothing ? EINVAL : EBADF));
        }
    }
}

}  // namespace
}  // namespace dragon
