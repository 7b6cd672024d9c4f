// What the thread reports to Python's part of the agent.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "frames.hpp"

namespace dragon::wire {

struct Report {
    enum class Kind {
        Control,  // `text` and `payload` are a message of the other agent, in epoch `number`
        Wanted,   // a connection is needed
        Made,     // a connection is ready
        Broken,   // the connection `number` ended because of `text`; `flag`: what came over it was invalid
        Ended,    // epoch `number` of the session began because of `text`: earlier requests and answers in
                  // flight are lost
        Arrived,  // all messages of the process `number` that has ended are in their channels, or lost
        Proxy,    // `name` is the channel of another node whose proxy is ready, at `number` and of generation
                  // `size`; `flag`: it is not, because of `text`
        Sent,     // message `number` of flow `size`, of payload.size bytes, while messages are traced
        Received,    // the same
        SendBeside,  // `payload` over the fabric, beside the connection `number`
        TakeBeside,  // fill `payload` over the fabric, beside the connection `number`
        Client,      // the process `number` has asked another node for something, for the first time
        Left,        // the process `number` of that node has ended
        Outcome,     // what the agent asked as `number`: `flag`, whether it was done, and the value `size`
        Got,         // the same: a message of kind `size`, the payload
        Failed,      // the same: the error, a class and a text with a zero between
        Operated,    // the process `number` has waited for `text`, since `size`, while operations are traced
        Log,         // `text`; `flag`: an error, else a warning
    };
    Kind kind;
    Node node = 0;
    uint64_t number = 0, size = 0;
    Name name;
    bool flag = false;
    std::string text;
    Payload payload;
};

// The events that Python has not taken. Python waits for the descriptor.
class Events {
  public:
    Events() : fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
        if (fd < 0) throw SystemFailure(errno, "eventfd");
    }
    Events(const Events&) = delete;
    ~Events() { close(fd); }
    void add(Report report) {
        if (waiting_.empty()) {
            uint64_t one = 1;
            if (write(fd, &one, sizeof one) < 0) throw SystemFailure(errno, "eventfd");
        }
        waiting_.push_back(std::move(report));
    }
    std::vector<Report> take() {
        uint64_t count;
        if (read(fd, &count, sizeof count) < 0) return {};
        return std::exchange(waiting_, {});
    }
    const int fd;

  private:
    std::vector<Report> waiting_;
};

}  // namespace dragon::wire
