// Runs the tests that are registered; and the helpers of core_test.hpp.
#include "core_test.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <thread>

namespace dragon {
namespace {

struct Test {
    const char* name;
    void (*run)();
    bool is_long;
};

std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct RunningTest {
    const Test* test;
    FILE* output;
    Nanoseconds start;
};

// Runs the test in a process group of its own, so that processes that a failed test leaves can be killed.
pid_t start(const Test& test, FILE* output) {
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        dup2(fileno(output), STDOUT_FILENO);
        dup2(fileno(output), STDERR_FILENO);
        alarm(kTestTimeoutS);
        test.run();
        fflush(stdout);
        _exit(0);
    }
    return pid;
}

// Prints the output and the result of a test that has ended. Returns whether it has failed.
bool report(const RunningTest& running, pid_t pid, int status) {
    kill(-pid, SIGKILL);
    rewind(running.output);
    char part[4096];
    while (size_t n = fread(part, 1, sizeof part, running.output)) fwrite(part, 1, n, stdout);
    fclose(running.output);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    const char* result = code == 0               ? "ok"
                         : code == kExitSkipped  ? "skipped"
                         : code == 128 + SIGALRM ? "HUNG"
                                                 : "FAILED";
    printf("%-7s %s (%.2f s)\n", result, running.test->name,
           static_cast<double>(now() - running.start) / 1e9);
    return code != 0 && code != kExitSkipped;
}

}  // namespace

TestRegistration::TestRegistration(const char* name, void (*run)(), bool is_long) {
    tests().push_back({name, run, is_long});
}

void fail_check(const char* file, int line, const char* condition) {
    fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
    fflush(stderr);
    _exit(1);
}

Arena& new_arena(uint64_t limit) {
    auto* a = new Arena(limit);
    set_arena(a);
    return *a;
}

Attached<Channel> new_channel(uint64_t capacity, bool pipe, Role role) {
    return {arena().create<Channel>(Kind::Channel, role, sizeof(Channel), capacity, pipe), role};
}
Attached<Lock> new_lock(bool recursive) {
    return {arena().create<Lock>(Kind::Lock, Role::Plain, sizeof(Lock), recursive), Role::Plain};
}
Attached<Condition> new_condition() {
    return {arena().create<Condition>(Kind::Condition, Role::Plain, sizeof(Condition)), Role::Plain};
}
Attached<Semaphore> new_semaphore(uint32_t value, uint32_t bound) {
    return {arena().create<Semaphore>(Kind::Semaphore, Role::Plain, sizeof(Semaphore), value, bound),
            Role::Plain};
}
Attached<Event> new_event() {
    return {arena().create<Event>(Kind::Event, Role::Plain, sizeof(Event)), Role::Plain};
}
Attached<Words> new_words(uint32_t count) {
    return {arena().create<Words>(Kind::Words, Role::Plain, Words::bytes(count), count), Role::Plain};
}

bool try_attach(Handle handle, Kind kind, Role role) {
    try {
        arena().attach(handle, kind, role);
        return true;
    } catch (const ObjectDestroyed&) {
        return false;
    }
}

Status put(Channel& c, uint64_t number, size_t size, Nanoseconds deadline, Side side) {
    CHECK(size % 8 == 0);
    std::vector<uint64_t> words(size / 8, number);
    if (size <= kSmall) return c.put_small(arena(), {1, size}, words.data(), deadline, side);
    Offset block = arena().allocate(kDataStart + size);
    memcpy(arena().at<char>(block) + kDataStart, words.data(), size);
    Status status = c.put_block(arena(), {2, size}, block, deadline, side);
    if (status != Status::Ok) arena().free(block);
    return status;
}

Status get(Channel& c, uint64_t& number, Nanoseconds deadline) {
    auto message = std::make_unique<Message>();
    Status status = c.get(arena(), *message, deadline);
    if (status != Status::Ok) return status;
    size_t size = message->label.size;
    const char* data = message->block ? arena().at<char>(message->block) + kDataStart : message->data;
    CHECK(message->label.kind == (message->block ? 2u : 1u));
    std::vector<uint64_t> words(size / 8);
    memcpy(words.data(), data, size);
    number = words[0];
    for (uint64_t word : words) CHECK(word == number);
    if (message->block) arena().free(message->block);
    return Status::Ok;
}

uint64_t get_or_fail(Channel& c) {
    uint64_t number = 0;
    CHECK(get(c, number, long_deadline()) == Status::Ok);
    return number;
}

int wait_status(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}
void join_child(pid_t pid) { CHECK(wait_status(pid) == 0); }
void kill_self() { kill(getpid(), SIGKILL); }

void check_free_lists() {
    for (size_t size : {size_t{64}, size_t{256}, size_t{512}, size_t{1024}, size_t{8192}}) {
        std::set<Offset> seen;
        for (int i = 0; i < 24; ++i) CHECK(seen.insert(arena().allocate(size)).second);
        // Freed in reverse, so that the blocks that WatchedMemory watches are allocated first again.
        for (auto block = seen.rbegin(); block != seen.rend(); ++block) arena().free(*block);
    }
}

}  // namespace dragon

// Runs the tests that are named, or all, as many at once as there are processors.
int main(int count, char** names) {
    using namespace dragon;
    std::set<std::string> wanted(names + 1, names + count);
    std::vector<const Test*> waiting;
    for (const Test& test : tests())
        if (wanted.empty() || wanted.count(test.name)) waiting.push_back(&test);
    std::stable_partition(waiting.begin(), waiting.end(), [](const Test* test) { return test->is_long; });
    std::map<pid_t, RunningTest> running;
    int failed = 0;
    for (auto next = waiting.begin(); next != waiting.end() || !running.empty();) {
        if (next != waiting.end() && running.size() < std::max(1u, std::thread::hardware_concurrency())) {
            RunningTest begun{*next++, tmpfile(), now()};
            CHECK(begun.output != nullptr);
            running[start(*begun.test, begun.output)] = begun;
            continue;
        }
        int status;
        pid_t pid = waitpid(-1, &status, 0);
        failed += report(running.at(pid), pid, status);
        running.erase(pid);
    }
    return failed != 0;
}
