// What two agents send each other: frames, each a head, a body and a payload.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "../core/arena.hpp"

namespace dragon::wire {

using Node = uint32_t;

// The name of a shared object, as Python knows it: where it is in its node's arena, its role, and its node.
struct Name {
    Offset offset = 0;
    uint32_t generation = 0, role = 0;
    auto operator<=>(const Name&) const = default;
    Node node() const { return role >> kNodeShift; }
    Handle handle() const { return {offset, generation}; }
};

enum class What : uint8_t {
    State,            // the epoch of the sender's session; the first frame of each side
    Control,          // a message of Python's part of the agent
    OpenFlow,         // `number`, `name`, `flag`: droppable. Messages of the flow may follow at once
    FlowOpened,       // `number`; with a text the error for which it was not opened
    Messages,         // `number`, `size`: the kind of the one message, kParcel for several; a payload
    FlowTaken,        // `number`, `size` more bytes of it are in the channel
    FlowFailed,       // `number`, and the error
    FlowStalled,      // `number`, `flag`: whether its messages wait for memory, and the error
    FlowOrphaned,     // `number`: no process writes to it any more
    FlowClosed,       // `number`: all of its messages were sent
    FlowCut,          // `number`: the flows up to that one have ended
    AskArrived,       // `number`, `size`: a ticket; asks for an answer once nothing of the flow waits
    Arrived,          // `size`: the ticket
    Watch,            // `name`, `flag`: report whether the channel can be read, or do so no more
    Readable,         // `name`, `flag`
    Operate,          // an Operation, see operations.hpp, and what belongs to it
    Answer,           // the outcome of one
    CancelOperation,  // `number`: the answer is not wanted any more
    Left,             // `number`: a process has ended; kept
    kCount,
};

inline constexpr uint64_t kParcel = UINT64_MAX;

struct Head {
    uint32_t body = 0;
    What what = What::State;
    uint8_t flags = 0;
    uint16_t unused = 0;
    uint64_t payload = 0;
    uint64_t number = 0;        // in the session; 0: not counted
    uint64_t acknowledged = 0;  // the last number of the other side that was handled
    uint64_t kept = 0;          // among the frames that survive the end of an epoch; 0: it does not
};
static_assert(sizeof(Head) == 40);
inline constexpr uint8_t kBeside = 1;  // the payload comes over the fabric that both agents have

// The body of a frame about a flow or a channel, which a text may follow.
struct Note {
    uint64_t number = 0, size = 0;
    Name name;
    uint32_t flag = 0, unused = 0;
};
static_assert(sizeof(Note) == 40);

// Whether an object of that kind has this handle, which comes from another process.
inline bool is_a(Kind kind, Handle handle) {
    return arena().exists(handle) && arena().meta(handle.offset).kind() == kind;
}

// A block of this node's arena, for the data of a large message.
struct Block {
    explicit Block(size_t size) : arena(&dragon::arena()), at(arena->allocate(size)) {}
    Block(Arena* arena, Offset at) : arena(arena), at(at) {}
    Block(const Block&) = delete;
    ~Block() {
        if (at && is_current(arena)) arena->free(at);
    }
    Offset pass_on() {
        Offset block = at;
        at = 0;
        return block;
    }
    Arena* arena;
    Offset at;
};

// Bytes that live as long as `keep`, and are the data of `block` if there is one.
struct Payload {
    const char* data = nullptr;
    size_t size = 0;
    std::shared_ptr<void> keep;
    std::shared_ptr<Block> block;

    std::string_view view() const { return {data, size}; }
    static Payload of(std::string text) {
        auto kept = std::make_shared<std::string>(std::move(text));
        return {kept->data(), kept->size(), kept, nullptr};
    }
};

// An error as processes get it: the name of Python's class, and the text.
struct Error {
    std::string kind, text;
    explicit operator bool() const { return !kind.empty(); }
    std::string encoded() const { return kind + '\0' + text; }
    static Error decoded(std::string_view both) {
        size_t end = both.find('\0');
        if (end == both.npos) return {};
        return {std::string(both.substr(0, end)), std::string(both.substr(end + 1))};
    }
};

// What the other agent sent is no frame, or not the next one.
struct Invalid : std::runtime_error {
    using std::runtime_error::runtime_error;
};

}  // namespace dragon::wire
