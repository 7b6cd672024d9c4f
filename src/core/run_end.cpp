#include "run_end.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "arena.hpp"
#include "process_handle.hpp"

namespace dragon {

namespace {

constexpr int kKilledWithin = 1'000;
constexpr int kLookEvery = 100;

bool ends_within(int agent, int milliseconds) {
    Nanoseconds deadline = now() + Nanoseconds{milliseconds} * 1'000'000;
    for (;;) {
        pollfd ended{agent, POLLIN, 0};
        Nanoseconds left = (deadline - now()) / 1'000'000;
        int ready = poll(&ended, 1, static_cast<int>(left > 0 ? left : 0));
        if (ready > 0) return true;
        if (ready == 0 || errno != EINTR) return false;
    }
}

bool ask(const RunEnd& run) {
    int channel = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (channel < 0) return false;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    strncpy(address.sun_path, run.address.c_str(), sizeof address.sun_path - 1);
    bool asked = connect(channel, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                 send(channel, run.request.data(), run.request.size(), MSG_NOSIGNAL) ==
                     static_cast<ssize_t>(run.request.size());
    // The agent reads the request before it sees the end of the connection.
    close(channel);
    return asked;
}

// Whether a signal has come that this process has blocked and that asks it to end.
bool told_to_leave() {
    sigset_t pending;
    sigpending(&pending);
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT})
        if (sigismember(&pending, number) == 1) return true;
    return false;
}

// Ends the agent and returns whether it can be taken as ended. An agent that cannot be watched, for instance
// without a free descriptor, detects the end of this process and removes its folders itself.
bool end_agent(const RunEnd& run) {
    int agent;
    try {
        agent = open_process(run.agent);
    } catch (const SystemFailure& failure) {
        return failure.error == ESRCH;
    }
    if (ask(run)) {
        bool ended = false, busy = false;
        Nanoseconds deadline = now() + static_cast<Nanoseconds>(run.within * 1e9);
        while (!(ended = ends_within(agent, kLookEvery)) && !(busy && told_to_leave()) &&
               (now() < deadline || busy))
            busy = access(run.busy.c_str(), F_OK) == 0;
        if (!ended) {
            try {
                signal_process(agent, run.agent, SIGKILL);
                ends_within(agent, kKilledWithin);
            } catch (const SystemFailure&) {
                // it ended between the two steps
            }
        }
    }
    close(agent);
    return true;
}

}  // namespace

void end_run(const RunEnd& run) {
    if (!end_agent(run)) return;
    std::error_code ignored;
    for (const std::string& folder : run.folders) std::filesystem::remove_all(folder, ignored);
    if (!run.folders.empty())  // the folder of all runs, if this was the last one
        rmdir(std::filesystem::path(run.folders.back()).parent_path().c_str());
}

}  // namespace dragon
