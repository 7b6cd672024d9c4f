// Single steps, kills and checks for kill_test.hpp.
#include "kill_test.hpp"

#include <sys/mman.h>
#include <sys/ptrace.h>

namespace dragon {
namespace {

// Copies of what operations change: the arena's tables, and the first blocks of each size class with their
// descriptions.
class WatchedMemory {
  public:
    WatchedMemory() {
        Arena& a = arena();
        add(0, offsetof(Header, slots) + 32 * sizeof(Slot));
        for (size_t size : {size_t{64}, size_t{256}, size_t{512}, size_t{1024}, size_t{8192}, kMiB}) {
            Offset block = a.allocate(size);
            add(block / 65536 * 65536, 16 * 1024);
            add(static_cast<Offset>(reinterpret_cast<char*>(&a.meta(block)) - a.at<char>(0)) / 4096 * 4096,
                4096);
            a.free(block);
        }
        update();
    }
    // Returns whether the memory has changed since the last call.
    bool update() {
        bool changed = false;
        for (auto& [start, copy] : ranges_) {
            const char* present = arena().at<char>(start);
            if (memcmp(copy.data(), present, copy.size()) == 0) continue;
            memcpy(copy.data(), present, copy.size());
            changed = true;
        }
        return changed;
    }
    // Sets the protection of the watched pages in this process.
    void protect(int protection) const {
        for (auto& [start, copy] : ranges_)
            CHECK(mprotect(arena().at<char>(start), copy.size(), protection) == 0);
    }

  private:
    void add(Offset start, size_t size) {
        size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        Offset first = start / page * page;
        ranges_.emplace_back(first, std::vector<char>((start + size - first + page - 1) / page * page));
    }
    std::vector<std::pair<Offset, std::vector<char>>> ranges_;
};

// The child runs freely while the watched pages are read-only, until a write raises SIGSEGV. From there the
// pages are writable and the child runs in single steps, until so many steps have changed nothing.
constexpr int kStepsAfterChange = 200;
const WatchedMemory* watched_in_child;

void allow_writes(int) {  // handles SIGSEGV
    watched_in_child->protect(PROT_READ | PROT_WRITE);
    raise(SIGTRAP);  // single steps from here
}
void forbid_writes(int) { watched_in_child->protect(PROT_READ); }  // handles SIGUSR1

// Kills the child after change number `kill_after`. Returns whether it had completed the operation before.
bool kill_after_change(const Operation& o, WatchedMemory& watched, int kill_after, pid_t& child) {
    child = fork_child([&] {
        arena().self();
        o.prepare_child();
        watched_in_child = &watched;
        signal(SIGSEGV, allow_writes);
        signal(SIGUSR1, forbid_writes);
        if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kExitSkipped);
        raise(SIGSTOP);
        o.run();
        raise(SIGSTOP);
    });
    int status = wait_status(child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kExitSkipped) {
        puts("  ptrace is not permitted");
        _exit(kExitSkipped);
    }
    CHECK(WIFSTOPPED(status));
    watched.update();
    bool can_write = false;
    long signal_to_deliver = SIGUSR1;
    auto request = PTRACE_CONT;
    for (int changes = 0, steps_without_change = 0; changes < kill_after;) {
        CHECK(ptrace(request, child, nullptr, signal_to_deliver) == 0);
        status = wait_status(child);
        CHECK(WIFSTOPPED(status));
        if (WSTOPSIG(status) == SIGSTOP) break;
        bool changed = watched.update();  // at SIGSEGV: a system call has changed it
        changes += changed;
        steps_without_change = changed ? 0 : steps_without_change + 1;
        if (WSTOPSIG(status) == SIGSEGV) {
            CHECK(!can_write);  // or else the operation has crashed
            can_write = true;
            steps_without_change = 0;
            signal_to_deliver = SIGSEGV;
            request = PTRACE_CONT;
            continue;
        }
        CHECK(WSTOPSIG(status) == SIGTRAP);
        can_write = steps_without_change <= kStepsAfterChange;
        signal_to_deliver = can_write ? 0 : SIGUSR1;
        request = can_write ? PTRACE_SINGLESTEP : PTRACE_CONT;
    }
    bool completed = WSTOPSIG(status) == SIGSTOP && kill_after > 0;
    o.while_stopped();
    kill(child, SIGKILL);
    wait_status(child);
    return completed;
}

}  // namespace

void kill_after_every_change(const std::string& name, const Operation& o) {
    WatchedMemory watched;
    check_free_lists();
    uint64_t before = 0;
    int n = 0;
    for (bool completed = false; !completed; ++n) {
        alarm(kTestTimeoutS);  // for each change, as all together take minutes on a slow machine
        o.prepare();
        pid_t child;
        completed = kill_after_change(o, watched, n, child);
        o.before_reap(completed);
        arena().reap_dead();
        CHECK(!arena().reap(child));
        o.check(completed);
        check_free_lists();
        if (n == 0)
            before = block_count();
        else if (block_count() != before) {
            fprintf(stderr, "%s: killed after change %d: %lu blocks, not %lu\n", name.c_str(), n,
                    block_count(), before);
            _exit(1);
        }
    }
    CHECK(n > 1);
    printf("  %s: killed after each of %d changes\n", name.c_str(), n - 1);
}

void check_tested_channel(uint64_t at_least, uint64_t at_most) {
    uint64_t size = tested_channel->size();
    CHECK(size >= at_least && size <= at_most);
    uint64_t number;
    for (uint64_t i = 0; i < size; ++i) {
        CHECK(get(*tested_channel, number) == Status::Ok);
        tested_channel->task_done();
    }
    CHECK(get(*tested_channel, number) == Status::Timeout);
    for (uint64_t i = 1; i <= 3; ++i) CHECK(put(*tested_channel, i, i == 2 ? 64 : 304) == Status::Ok);
    for (uint64_t i = 1; i <= 3; ++i) CHECK(get_or_fail(*tested_channel) == i);
    for (int i = 0; i < 3; ++i) CHECK(tested_channel->task_done());
    tested_channel.release();
}

}  // namespace dragon
