#include "fork_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "msgpack.hpp"
#include "packets.hpp"
#include "sync.hpp"
#include "system_text.hpp"

namespace dragon {

namespace {

constexpr size_t kLargestDatagram = 256 * 1024;
constexpr off_t kLargestRequest = 1 << 28;
constexpr size_t kLongestName = 4096;
constexpr size_t kMostDescriptors = 253;   // the most that one message can carry
constexpr size_t kMostUntold = 32 * 1024;  // bytes: events are sent in packets, which the agent reads whole
constexpr uint32_t kMostEvents = 32;
constexpr std::string_view kNil = "\xc0";
constexpr pid_t kNoProcess = (1 << 22) + 1;  // above the largest possible process id
constexpr int kFolder = 3;  // used in place of a stream's number; the same as in runtime/spawning.py
constexpr size_t kSignalSets = 3;
constexpr int kRest = 100;  // milliseconds
enum Source : unsigned { kRequests = 1, kAgent = 2, kSignals = 4 };

uint64_t wall_clock() {  // nanoseconds since 1970
    timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

ino_t inode(int fd) {
    struct stat of;
    return fstat(fd, &of) == 0 ? of.st_ino : 0;
}

}  // namespace

ForkServer::ForkServer(int requests, int agent, int signals)
    : requests_(requests),
      agent_(agent),
      signals_(signals),
      null_(open("/dev/null", O_RDWR | O_CLOEXEC)),
      me_(getpid()),
      umask_(current_umask()),
      buffer_(kLargestDatagram) {}

void ForkServer::set_output(bool label, bool forwards) {
    label_ = label;
    forwards_ = forwards;
}

void ForkServer::look(int timeout) {
    pollfd sources[] = {{requests_, POLLIN, 0}, {agent_, POLLIN, 0}, {signals_, POLLIN, 0}};
    if (poll(sources, 3, timeout) <= 0) return;
    for (unsigned i = 0; i < 3; ++i)
        if (sources[i].revents) ready_ |= 1u << i;
}

bool ForkServer::wait() {
    int patience = leftovers_.patience();
    if (!awaits_idle_) {
        look(patience);
        return false;
    }
    look(patience < 0 ? kRest : std::min(patience, kRest));
    awaits_idle_ = ready_;
    return !awaits_idle_;
}

Next ForkServer::next() {
    auto take = [&](Source source) {
        bool was = ready_ & source;
        ready_ &= ~source;
        return was;
    };
    leftovers_.kill_overdue();
    for (;;) {
        if (!ready_ && untold_) {
            look(0);
            if (!ready_) flush();
        }
        if (!ready_) return Next::Wait;
        if (!heard_ && take(kAgent)) {
            heard_ = true;
            return Next::Agent;
        }
        if (take(kRequests)) {
            Next todo = serve();
            if (todo != Next::Wait) return todo;
        }
        if (take(kAgent)) return Next::Agent;
        if (take(kSignals)) {
            bool ends = read_signals();
            reap();
            if (ends) return Next::End;
        }
    }
}

bool ForkServer::read_signals() const {
    signalfd_siginfo signals[64];
    ssize_t size = read(signals_, signals, sizeof signals);
    bool ends = false;
    for (size_t i = 0; size > 0 && i < static_cast<size_t>(size) / sizeof *signals; ++i)
        ends |= signals[i].ssi_signo == SIGTERM;
    return ends;
}

// ---- starting

// Receives a request. Returns false if there is none.
bool ForkServer::receive() {
    buffer_.resize(kLargestDatagram);
    alignas(cmsghdr) char control[CMSG_SPACE(kMostDescriptors * sizeof(int))];
    iovec data{buffer_.data(), buffer_.size()};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t size = recvmsg(requests_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (size < 0) throw SystemFailure(errno, "receiving a request");
    size_ = static_cast<size_t>(size);
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        descriptors_.resize((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(descriptors_.data(), CMSG_DATA(c), descriptors_.size() * sizeof(int));
    }
    if (message.msg_flags & MSG_TRUNC) throw Malformed("it is too long");
    if (data_is_beside()) read_beside();
    return true;
}

// A request that is too large for a datagram is in a file, which is its last descriptor.
bool ForkServer::data_is_beside() const { return data() == kNil && !descriptors_.empty(); }

void ForkServer::read_beside() {
    int fd = descriptors_.back();
    descriptors_.pop_back();
    opened_.push_back(fd);
    struct stat of;
    if (fstat(fd, &of) != 0 || of.st_size > kLargestRequest) throw Malformed("it is too long");
    size_ = static_cast<size_t>(of.st_size);
    buffer_.resize(size_);
    for (size_t done = 0; done < size_;) {
        ssize_t some = pread(fd, buffer_.data() + done, size_ - done, static_cast<off_t>(done));
        if (some <= 0) throw Malformed("it ends too early");
        done += static_cast<size_t>(some);
    }
}

Next ForkServer::serve() {
    try {
        if (!receive()) return Next::Wait;
        asked_ = SpawnRequest::parse(data());
        arena().attach(asked_.record.handle, Kind::Words, Role::Plain);
    } catch (const std::runtime_error& error) {
        why_ = error.what();
        close_descriptors();
        return Next::Refused;
    }
    slot_ = 0;
    lacking_ = 0;
    try {
        if (descriptors_.size() < 3) throw SystemFailure(EMFILE, "no room for its descriptors (ulimit -n)");
        if (asked_.name.size() > kLongestName) throw SystemFailure(ENAMETOOLONG, "the name of a process");
        asked_at_ = wall_clock();
        slot_ = arena().reserve_slot();
        for (auto& name : asked_.attached) arena().attach_for(slot_, name.handle, name.role);
        std::string folder = restored(asked_.folder);
        if (!folder.empty() && access(folder.c_str(), X_OK) != 0) {
            lacking_ = kFolder;
            throw SystemFailure(errno, folder);
        }
        ::umask(asked_.umask < 0 ? umask_ : static_cast<mode_t>(asked_.umask));
        for (int number = 0; number < 3; ++number) streams_[number] = open_stream(number);
        tell_streams();
        if (asked_.executable.empty()) {
            alike_ = alike_ && asked_.main == main_ && asked_.surroundings == surroundings_;
            if (alike_) return fork_for_it();
        }
        return Next::Request;
    } catch (const SystemFailure& error) {
        failed(error.error, std::string(strerror(error.error)) + ": " + error.what());
    } catch (const std::runtime_error& error) {
        failed(EIO, error.what());
    }
    return Next::Wait;
}

Next ForkServer::fork_for_it() {
    pid_t pid = fork();
    if (pid == 0) return Next::Child;
    if (pid < 0) throw SystemFailure(errno, "no new process (ulimit -u)");
    started(pid, true);
    return Next::Wait;
}

// Returns the descriptor for a stream of the new process. Descriptors that are opened for it are closed once
// the process exists.
int ForkServer::open_stream(int number) {
    std::vector<int>& passed = passed_[static_cast<size_t>(number)];
    passed.clear();
    int given = descriptors_[static_cast<size_t>(number)];
    const SpawnRequest::Output& output = asked_.streams[static_cast<size_t>(number)];
    if (output.kind == "null") return null_;
    if (output.kind == "stdout") return streams_[1];
    if (output.kind == "file") {
        std::string path = restored(output.path);
        if (path[0] != '/' && !asked_.folder.empty()) path = restored(asked_.folder) + "/" + path;
        int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (fd < 0) {
            lacking_ = number;
            throw SystemFailure(errno, path);
        }
        opened_.push_back(fd);
        return fd;
    }
    bool labelled = label_ && number != 0;
    if (output.kind == "inherit" && !labelled) return given;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw SystemFailure(errno, "pipe");
    opened_.insert(opened_.end(), ends, ends + 2);
    auto [theirs, ours] = number == 0 ? std::pair{ends[0], ends[1]} : std::pair{ends[1], ends[0]};
    passed.push_back(ours);
    if (output.kind == "tee" || output.kind == "inherit") {
        // A labelled process passes a pipe of the server on to its children: their output must not pass
        // through it again.
        if (!labelled_.count(inode(given)))
            passed.push_back(given);
        else if (!forwards_)
            passed.push_back(number);
    }
    if (label_ && output.kind != "pipe") labelled_.insert(inode(ends[0]));
    return theirs;
}

// Sends the agent its ends of the pipes before there is a process that writes.
void ForkServer::tell_streams() {
    for (size_t number = 0; number < 3; ++number) {
        const std::vector<int>& passed = passed_[number];
        if (passed.empty()) continue;
        std::string_view channel = asked_.streams[number].channel;
        event("stream", 4, asked_.puid, asked_.group)
            .text("name")
            .text(readable(asked_.name))
            .text("number")
            .number(number)
            .text("channel")
            .raw(channel.empty() ? kNil : channel)
            .text("descriptors")
            .number(passed.size());
        beside_.insert(beside_.end(), passed.begin(), passed.end());
    }
    if (!beside_.empty()) flush();
}

std::vector<int> ForkServer::descriptors() const {
    std::vector<int> result(streams_.begin(), streams_.end());
    result.insert(result.end(), descriptors_.begin() + 3, descriptors_.end());
    return result;
}

// Closes the descriptors that arrived with the request or were opened for it.
void ForkServer::close_descriptors() {
    for (auto* each : {&descriptors_, &opened_}) {
        for (int fd : *each) close(fd);
        each->clear();
    }
}

void ForkServer::fork_alike() {
    main_ = asked_.main;
    surroundings_ = asked_.surroundings;
    alike_ = true;
}

void ForkServer::started(pid_t pid, bool forked) {
    if (forked)
        arena().promise_slot(slot_, pid);
    else
        arena().fill_slot(slot_, pid);
    children_.emplace(
        pid, Child{asked_.puid, asked_.parent, asked_.group, asked_.record.handle, asked_.leave_running});
    started_by_[asked_.parent].insert(pid);
    Words& record = *arena().at<Words>(asked_.record.handle.offset);
    record.at(kPid) = static_cast<uint64_t>(pid);
    record.at(kStatus) = kRunning;
    record.changed();
    event("started", 5, asked_.puid, asked_.group)
        .text("pid")
        .number(static_cast<uint64_t>(pid))
        .text("name")
        .text(readable(asked_.name))
        .text("parent")
        .number(asked_.parent)
        .text("record")
        .raw(asked_.record.encoded)
        .text("time")
        .number(asked_at_);
    close_descriptors();
}

void ForkServer::failed(int error, const std::string& text) {
    if (slot_) {
        arena().fill_slot(slot_, kNoProcess);
        arena().reap(kNoProcess);
    }
    Words& record = *arena().at<Words>(asked_.record.handle.offset);
    record.at(kError) = static_cast<uint64_t>(error);
    record.at(kCode) = static_cast<uint64_t>(lacking_);
    record.at(kStatus) = kFailed;
    record.changed();
    arena().release(asked_.record.handle, Role::Plain);
    event("failed", 2, asked_.puid, asked_.group)
        .text("text")
        .text(readable(text))
        .text("error")
        .number(static_cast<uint64_t>(error));
    close_descriptors();
}

void ForkServer::enter_child() {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != me_) _exit(1);
    for (int number = 0; number < 3; ++number) dup2(streams_[number], number);
    descriptors_.resize(3);  // the process keeps the others
    close_descriptors();
    for (int fd : {requests_, agent_, signals_, null_}) close(fd);
    leftovers_.close_file();
    become_reaper();
    std::vector<int64_t> signals = numbers_in(asked_.signals);
    block_signals(signals.size() == kSignalSets ? static_cast<uint64_t>(signals[1]) : 0);
    if (auto cpus = numbers_in(asked_.cpus); !cpus.empty()) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (int64_t cpu : cpus) CPU_SET(static_cast<int>(cpu), &set);
        if (sched_setaffinity(0, sizeof set, &set) != 0) throw SystemFailure(errno, "sched_setaffinity");
    }
    if (limits_addresses(numbers_in(asked_.limits))) arena().shrink_mapping();
    take_limits(numbers_in(asked_.limits));
    std::string folder = restored(asked_.folder);
    arena().take_slot(slot_);
    // The process that requested this one is woken about now, often on the processor on which it slept and on
    // which this process was placed. Let it run first, as it may have more processes to start.
    sched_yield();
    if (!folder.empty() && chdir(folder.c_str()) != 0) throw SystemFailure(errno, folder);
}

// ---- reaping

void ForkServer::reap() {
    struct Ended {
        Child child;
        int status;
        bool leaves;
    };
    std::vector<Ended> told;
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        arena().reap(pid);
        auto found = children_.find(pid);
        if (found == children_.end()) {
            leftovers_.reaped(pid, status);
            continue;
        }
        Child child = found->second;
        children_.erase(found);
        told.push_back({child, status, !end_what_it_started(pid, child, status)});
    }
    leftovers_.look([this](pid_t pid) { return children_.count(pid) != 0; });
    for (auto& [child, how, leaves] : told) ended(child, how, leaves);
}

Leftovers::Fate ForkServer::end_what_it_started(pid_t pid, const Child& child, int status) {
    Leftovers::Fate fate;
    if (!child.leave_running || leftovers_.is_to_end(pid)) fate = leftovers_.fate_after(pid, status);
    leftovers_.forget(pid);
    leftovers_.left_with(fate);
    if (auto siblings = started_by_.find(child.parent); siblings != started_by_.end()) {
        siblings->second.erase(pid);
        if (siblings->second.empty()) started_by_.erase(siblings);
    }
    if (auto own = started_by_.find(child.puid); fate && own != started_by_.end())
        for (pid_t each : own->second) leftovers_.end(each, fate);
    return fate;
}

void ForkServer::disown() {
    leftovers_.leave_all([this](pid_t pid) { return children_.count(pid) != 0; });
}

void ForkServer::ended(const Child& child, int status, bool leaves) {
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    Words& record = *arena().at<Words>(child.record.offset);
    uint64_t signals = record.at(kSent);
    record.at(kCode) = static_cast<uint64_t>(static_cast<int64_t>(code));
    record.at(kStatus) = kExited;
    record.changed();
    arena().release(child.record, Role::Plain);
    event("exited", 4, child.puid, child.group)
        .text("code")
        .signed_number(code)
        .text("signals")
        .number(signals)
        .text("leaves")
        .number(leaves)
        .text("time")
        .number(wall_clock());
}

std::vector<pid_t> ForkServer::running() const {
    std::vector<pid_t> pids;
    for (auto& [pid, child] : children_) pids.push_back(pid);
    return pids;
}

// ---- notifying the agent

// Begins an event that has `values` pairs, which the caller adds, besides its kind, process and group.
MsgpackWriter ForkServer::event(std::string_view kind, uint8_t values, uint64_t puid, uint64_t group) {
    if (untold_ >= kMostEvents || events_.size() > kMostUntold) flush();
    ++untold_;
    return MsgpackWriter(events_)
        .map(static_cast<uint8_t>(values + 3))
        .text("event")
        .text(kind)
        .text("puid")
        .number(puid)
        .text("group")
        .number(group);
}

void ForkServer::synchronise() {
    reap();
    ++untold_;
    MsgpackWriter(events_).map(1).text("event").text("synchronised");
    flush();
}

void ForkServer::flush() {
    if (!untold_) return;
    std::string head;
    MsgpackWriter(head).array(untold_);
    ssize_t sent = send_packet(agent_, head, events_, beside_);
    int error = errno;
    events_.clear();
    untold_ = 0;
    beside_.clear();
    // If the agent has ended, next() reports it.
    if (sent < 0 && error != EPIPE && error != ECONNRESET) throw SystemFailure(error, "telling the agent");
}

}  // namespace dragon
