#include "leftovers.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "process_handle.hpp"

namespace dragon {

namespace {

constexpr auto kGrace = std::chrono::seconds(5);  // between SIGTERM and SIGKILL

// Kernels without CONFIG_PROC_CHILDREN do not list a process's children.
std::vector<pid_t> children_among_all() {
    std::vector<pid_t> found;
    DIR* all = opendir("/proc");
    if (!all) return found;
    while (dirent* entry = readdir(all)) {
        auto pid = static_cast<pid_t>(atoi(entry->d_name));
        if (pid > 0 && parent_of(pid) == getpid()) found.push_back(pid);
    }
    closedir(all);
    return found;
}

}  // namespace

Leftovers::Leftovers() {
    std::string path = "/proc/self/task/" + std::to_string(gettid()) + "/children";
    file_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

void Leftovers::close_file() {
    if (file_ >= 0) close(file_);
    file_ = -1;
}

std::vector<pid_t> Leftovers::children() {
    if (file_ < 0) return children_among_all();
    text_.clear();
    char some[4096];
    for (ssize_t n; (n = pread(file_, some, sizeof some, static_cast<off_t>(text_.size()))) > 0;)
        text_.append(some, static_cast<size_t>(n));
    std::vector<pid_t> found;
    const char* p = text_.c_str();
    for (char* end; *p; p = end) {
        auto pid = static_cast<pid_t>(strtol(p, &end, 10));
        if (end == p) break;
        if (pid > 0) found.push_back(pid);
    }
    return found;
}

Leftovers::Fate Leftovers::fate_after(pid_t pid, int status) const {
    auto now = Clock::now();
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) return now;
    auto ending = ending_.find(pid);
    return ending == ending_.end() ? now + kGrace : ending->second.kill_at;
}

void Leftovers::end(pid_t pid, Fate fate) {
    if (!fate) return;
    bool at_once = *fate <= Clock::now();
    kill(pid, at_once ? SIGKILL : SIGTERM);
    ending_[pid] = {*fate, at_once};
}

void Leftovers::left_with(Fate fate) {
    // It cannot be told which of the processes that ended left an orphan. If all of them have the same fate
    // for it, that is its fate; otherwise it gets the mildest of them.
    if (!any_ended_)
        fate_ = fate;
    else if (!fate || !fate_)
        fate_.reset();
    else
        fate_ = std::max(*fate, *fate_);
    any_ended_ = true;
}

bool Leftovers::reaped(pid_t pid, int status) {
    if (alone_.erase(pid)) {
        left_with({});
        return true;
    }
    if (!ending_.count(pid)) return false;
    left_with(fate_after(pid, status));
    ending_.erase(pid);
    return true;
}

void Leftovers::treat(pid_t pid) {
    if (fate_)
        end(pid, fate_);
    else
        alone_.insert(pid);
}

int Leftovers::patience() const {
    int least = -1;
    auto now = Clock::now();
    for (auto& [pid, ending] : ending_) {
        if (ending.killed) continue;
        auto left = std::chrono::duration_cast<std::chrono::milliseconds>(ending.kill_at - now).count() + 1;
        auto wait = static_cast<int>(std::max<decltype(left)>(left, 0));
        least = least < 0 ? wait : std::min(least, wait);
    }
    return least;
}

void Leftovers::kill_overdue() {
    if (ending_.empty()) return;
    auto now = Clock::now();
    for (auto& [pid, ending] : ending_) {
        if (ending.killed || ending.kill_at > now) continue;
        kill(pid, SIGKILL);
        ending.killed = true;
    }
}

}  // namespace dragon
