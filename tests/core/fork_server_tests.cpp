// Tests of the fork server: which requests it serves by itself, returns to its caller, or refuses.
#include <sys/signalfd.h>
#include <sys/socket.h>

#include <cstdlib>

#include "../../src/core/fork_server.hpp"
#include "../../src/core/packets.hpp"
#include "core_test.hpp"

namespace dragon {
namespace {

std::string start_request(Handle record, const std::string& more = "", uint8_t pairs = 0) {
    std::string request;
    MsgpackWriter out(request);
    out.map(static_cast<uint8_t>(4 + pairs)).text("puid").number(7).text("name").text("a name");
    out.text("main").array(2).text("path").text("/program.py");
    out.text("record").array(3).number(record.offset).number(record.generation).number(0);
    return request + more;
}

std::string payload_field(const std::string& payload) {
    std::string more;
    MsgpackWriter(more).text("payload").text(payload);
    return more;
}

// A new arena, and the sockets of a fork server: the ends of the server, of the agent, and of a process that
// sends requests.
struct ForkServerSockets {
    int requests[2], agent[2], signals;

    ForkServerSockets() {
        new_arena();
        CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, requests) == 0);
        CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, agent) == 0);
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGCHLD);
        sigaddset(&set, SIGTERM);
        sigprocmask(SIG_BLOCK, &set, nullptr);
        signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    }
    ForkServer server() const { return {requests[1], agent[1], signals}; }
    void send_request(const std::string& request, const std::vector<int>& descriptors = {0, 1, 2}) const {
        CHECK(send_packet(requests[0], request, "", descriptors) == static_cast<ssize_t>(request.size()));
    }
    std::string receive_events() const {
        std::string all;
        char packet[65536];
        ssize_t size;
        while ((size = recv(agent[0], packet, sizeof packet, MSG_DONTWAIT)) > 0)
            all.append(packet, static_cast<size_t>(size));
        return all;
    }
};

// Serves until the caller has to act, or until the status in the record changes: then returns Next::Wait.
Next wait_for_action(ForkServer& server, const Attached<Words>& record) {
    for (;;) {
        Next next = server.next();
        if (next != Next::Wait || record->at(kStatus) != kAsked) return next;
        server.wait();
    }
}

// Completes a first request, after which the server forks by itself for requests of start_request().
void allow_forking(const ForkServerSockets& sockets, ForkServer& server) {
    auto record = new_words(4);
    sockets.send_request(start_request(record.handle));
    CHECK(wait_for_action(server, record) == Next::Request);
    CHECK(server.request().puid == 7 && server.request().name == "a name");
    CHECK(server.descriptors().size() == 3);
    server.fork_alike();
    server.failed(ENOENT, "not started in this test");
    CHECK(record->at(kStatus) == kFailed && record->at(kError) == ENOENT);
    record.release();
}

TEST(server_forks_for_alike_requests_itself) {
    ForkServerSockets sockets;
    ForkServer server = sockets.server();
    allow_forking(sockets, server);
    auto record = new_words(4);
    sockets.send_request(start_request(record.handle, payload_field("its payload"), 1));
    pid_t me = getpid();
    int may_end[2];
    CHECK(pipe(may_end) == 0);
    if (wait_for_action(server, record) == Next::Child) {
        CHECK(getppid() == me && server.request().payload == "its payload");
        server.enter_child();
        char byte;
        close(may_end[1]);
        CHECK(read(may_end[0], &byte, 1) == 0);
        _exit(3);
    }
    pid_t child = static_cast<pid_t>(record->at(kPid).load());
    CHECK(server.running() == std::vector<pid_t>{child});
    close(may_end[1]);
    while (record->at(kStatus) != kExited) {
        server.wait();
        CHECK(server.next() == Next::Wait);
    }
    CHECK(record->at(kCode) == 3 && server.running().empty());
    server.synchronise();
    std::string events = sockets.receive_events();
    for (auto event : {"failed", "started", "exited", "synchronised"})
        CHECK(events.find(event) != events.npos);
    record.release();
    CHECK(block_count() <= 1);
}

TEST(server_returns_requests_with_other_surroundings) {
    ForkServerSockets sockets;
    ForkServer server = sockets.server();
    allow_forking(sockets, server);
    auto record = new_words(4);
    std::string surroundings;
    MsgpackWriter(surroundings).text("surroundings").text("others");
    for (int round = 0; round < 2; ++round) {
        sockets.send_request(start_request(record.handle, surroundings, 1));
        CHECK(wait_for_action(server, record) == Next::Request);
        server.failed(ENOENT, "not started in this test");
        record->at(kStatus) = kAsked;
    }
    // Returned although it was allowed before, since other surroundings were set up in between.
    sockets.send_request(start_request(record.handle));
    CHECK(wait_for_action(server, record) == Next::Request);
}

TEST(request_larger_than_a_datagram_is_read_from_a_file) {
    ForkServerSockets sockets;
    ForkServer server = sockets.server();
    auto record = new_words(4);
    std::string request = start_request(record.handle, payload_field(std::string(3 * kMiB, 'x')), 1);
    FILE* file = tmpfile();
    CHECK(fwrite(request.data(), request.size(), 1, file) == 1 && fflush(file) == 0);
    sockets.send_request("\xc0", {0, 1, 2, fileno(file)});
    CHECK(wait_for_action(server, record) == Next::Request);
    CHECK(server.request().payload.size() == 3 * kMiB && server.descriptors().size() == 3);
}

TEST(malformed_requests_are_refused) {
    ForkServerSockets sockets;
    ForkServer server = sockets.server();
    auto record = new_words(4);
    std::string whole = start_request(record.handle, payload_field("its payload"), 1);
    for (size_t size = 0; size < whole.size(); ++size) {
        sockets.send_request(whole.substr(0, size));
        CHECK(wait_for_action(server, record) == Next::Refused);
    }
    sockets.send_request(start_request({record.handle.offset, record.handle.generation + 1}));
    CHECK(wait_for_action(server, record) == Next::Refused);
    // With random bytes it is refused or still a request, possibly with another record.
    unsigned seed = 1;
    for (int round = 0; round < 5000; ++round) {
        std::string changed = whole;
        for (int change = rand_r(&seed) % 4; change >= 0; --change)
            changed[static_cast<size_t>(rand_r(&seed)) % changed.size()] = static_cast<char>(rand_r(&seed));
        sockets.send_request(changed);
        Next next = wait_for_action(server, record);
        if (next == Next::Request) server.failed(ENOENT, "a test");
        CHECK(next == Next::Request || next == Next::Refused || record->at(kStatus) == kFailed);
        record->at(kStatus) = kAsked;
        sockets.receive_events();
    }
    sockets.send_request(whole, {});  // without its descriptors
    CHECK(wait_for_action(server, record) == Next::Wait && record->at(kError) == EMFILE);
}

}  // namespace
}  // namespace dragon
