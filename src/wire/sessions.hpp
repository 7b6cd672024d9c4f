// What two agents send each other, over one connection after the other.
//
// Each frame is numbered, and kept until the other agent has acknowledged it. If the connection breaks, those
// that are not acknowledged are sent again over the next one, in order; the other agent handles each number
// once. So nothing is lost, and nothing is done twice. If no connection can be made for a while, which Python
// decides, the session goes into its next epoch: what was in flight is lost, except kept frames, and the
// numbers begin again. The agents send each other the epoch first over every connection; the later one counts
// for both.
//
// A connection carries records: a length, and that many bytes, sealed. A record is either whole frames, or a
// piece of the body or payload of a large frame, whose head was in the record before. So a large payload is
// decrypted into the memory where it stays.
#pragma once

#include <array>
#include <deque>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "frames.hpp"
#include "loop.hpp"
#include "seal.hpp"

namespace dragon::wire {

// What Python hands over with a connection after both sides have shown their certificates.
struct Made {
    int fd;
    Node node;
    std::string out_key, in_key;
    std::string early;   // what was received already of the first records
    bool plain = false;  // whether large payloads are not encrypted
    // Whether large payloads come over the fabric that both agents have, and whether they go over it.
    bool takes_beside = false, sends_beside = false;
};

class SessionUser {
  public:
    virtual ~SessionUser() = default;
    // Handles a frame of another node. `body` and a payload without `keep` are valid only during the call.
    virtual void handle(Node node, What what, std::string_view body, Payload& payload) = 0;
    // Called before a frame is queued for a node, and may queue others before it.
    virtual void before_send(Node node) = 0;
    // What was in flight to a node is lost, and what it has asked is not answered.
    virtual void epoch_ended(Node node, const std::string& reason) = 0;
    virtual void connection_wanted(Node node) = 0;
    virtual void connection_made(Node node) = 0;
    virtual void connection_broken(Node node, uint64_t connection, const std::string& reason,
                                   bool invalid) = 0;
    // Returns the memory for a large payload.
    virtual Payload memory_for(What what, std::string_view body, size_t size) = 0;
    // Send or receive a payload beside the connection of that number; finish_beside() tells that it is
    // received.
    virtual void send_beside(Node node, uint64_t connection, const Payload& payload) = 0;
    virtual void receive_beside(Node node, uint64_t connection, const Payload& payload) = 0;
};

class Sessions {
  public:
    Sessions(Loop& loop, SessionUser& user) : loop_(loop), user_(user) {}
    ~Sessions();

    // Uses a connection. Returns its number.
    uint64_t add(Made made);
    // Queues a frame, for the next connection if there is none. A `kept` one is lost only with the node.
    // Returns the epoch in which it is sent.
    // If the epoch ends and the other agent has not handled the frame, `lost` is called once that is known.
    uint64_t send(Node node, What what, std::string body, Payload payload = {}, bool kept = false,
                  std::function<void()> lost = {});
    void send(Node node, What what, const Note& note, std::string_view text = {}, Payload payload = {}) {
        std::string body(reinterpret_cast<const char*>(&note), sizeof note);
        send(node, what, body.append(text), std::move(payload));
    }
    // Ends the epoch of a session.
    void end_epoch(Node node, const std::string& reason);
    // Ends a session for ever: nothing is sent to that node or handled from it any more.
    void forget(Node node);
    // Closes the connection of that number; what was received over it is not handled.
    void abort(uint64_t connection, const std::string& reason);
    void abort_all();
    // Handles no more frames of a node until unblock().
    void block(Node node);
    void unblock(Node node);
    void finish_beside(uint64_t connection);
    // Sends what is queued. To be called after other functions.
    void settle();

    std::vector<uint64_t> connections() const;
    uint64_t epoch(Node node) const;
    bool connected(Node node) const;
    bool was_connected(Node node) const;  // in this epoch
    bool has_unacknowledged(Node node) const;
    bool has_kept(Node node) const;

  private:
    struct Sent {
        Head head;
        std::string body;
        Payload payload;
        std::function<void()> lost;
    };
    // How many frames of an epoch were handled.
    struct Ended {
        uint64_t epoch = 0, handled = 0;
    };
    // The epoch; and the latest ones before it that had a connection, the last one first. Several, since an
    // epoch can end before the other agent has received a frame of it.
    struct State {
        uint64_t epoch = 0;
        std::array<Ended, 4> ended{};
        bool handled(uint64_t in_epoch, uint64_t number) const;
    };
    struct Session;
    struct Connection;
    using Link = std::shared_ptr<Connection>;

    Session* find(Node node) const;
    Session& session(Node node);
    void queue(Session& s, Sent frame);
    void settle_unsure(Session& s, const State& told);
    void end_epoch(Session& s, uint64_t epoch, const std::string& reason, const Connection* besides);
    void use(Session& s, Link c);
    void on_events(const Link& c, uint32_t events);
    void watch(Connection& c);
    void write_state(Connection& c);
    void pump(const Link& c);
    bool write_on(Connection& c);
    bool transmit(Connection& c, const char* data, size_t size);
    std::string_view next_record(Session& s, Connection& c);
    bool append(Session& s, Connection& c, const Sent& frame);
    std::string_view next_piece(Connection& c);
    void read(const Link& c);
    bool parse(Connection& c);
    void take_record(Connection& c, const char* data, size_t size);
    bool take_frames(Connection& c);
    void begin_large(Connection& c, const Head& head);
    void next_part(Connection& c);
    void hear(Connection& c, const Head& head, std::string_view body, Payload& payload);
    void drop(Session& s, uint64_t acknowledged);
    void acknowledge_soon(Session& s, size_t size);
    void broke(Connection& c, const std::string& reason, bool invalid = false);

    Loop& loop_;
    SessionUser& user_;
    std::unordered_map<Node, std::shared_ptr<Session>> sessions_;
    std::set<Node> lost_;
    std::unordered_map<uint64_t, Link> connections_;
    std::vector<Link> dirty_, resumed_;
    std::string plain_, sealed_;  // scratch, for records that are written
};

}  // namespace dragon::wire
