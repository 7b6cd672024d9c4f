// The operations on shared objects: one table for objects of this node and of others, for processes that
// block and for event loops.
//
// A process puts an Operation, and what belongs to it, into the desk, a channel of its node's agent, and
// names a channel for the answer. The wire performs it, or has the wire of the object's node do so.
#pragma once

#include "frames.hpp"

namespace dragon::wire {

enum class Do : uint32_t {
    None,
    // any object
    Attach,
    Send,
    Release,
    Destroy,
    // channels; `a` of a put is the kind of message
    ChannelPut,
    ChannelPutBack,
    ChannelGet,  // with `words`: notes the ticket of the message at index `a`
    ChannelReadable,
    ChannelWritable,
    ChannelJoin,
    ChannelSize,
    ChannelCapacity,
    ChannelFull,
    ChannelTaskDone,
    // locks and semaphores
    LockAcquire,
    LockRelease,
    LockIsMine,
    LockCount,
    LockRecursive,
    LockOwner,
    SemaphoreAcquire,
    SemaphoreRelease,
    SemaphoreValue,
    // events and conditions
    EventSet,
    EventClear,
    EventIsSet,
    EventWait,
    ConditionEnter,
    ConditionLeave,
    ConditionNotify,
    ConditionSleep,
    // words
    WordsLength,
    WordsGet,
    WordsSet,
    WordsAdd,
    WordsSwapIf,
    WordsWait,
    WordsRead,
    WordsWrite,
    // shards of dictionaries: the object is the shard's words, `a` the checkpoint, `b` the flags. The payload
    // has the size of the key, the key, and the record
    ShardGet,
    ShardContains,
    ShardPut,
    ShardPutNew,
    ShardPop,  // `b`: whether the record is wanted
    // A put with this shard and, with the flags `ticket`, with `c` others, whose names precede the key
    ShardSpread,
    // of the desk
    Cancel,
    kCount,
};

constexpr const char* kOperations[] = {
    "none",
    "attach",
    "send",
    "detach",
    "destroy",
    "Channel.put",
    "Channel.put_back",
    "Channel.get",
    "Channel.wait_readable",
    "Channel.wait_writable",
    "Channel.join",
    "Channel.size",
    "Channel.capacity",
    "Channel.full",
    "Channel.task_done",
    "Lock.acquire",
    "Lock.release",
    "Lock.is_mine",
    "Lock.count",
    "Lock.recursive",
    "Lock.owner",
    "Semaphore.acquire",
    "Semaphore.release",
    "Semaphore.value",
    "Event.set",
    "Event.clear",
    "Event.is_set",
    "Event.wait",
    "Condition.enter",
    "Condition.leave",
    "Condition.notify",
    "Condition.sleep",
    "Words.length",
    "Words.get",
    "Words.set",
    "Words.add",
    "Words.swap_if",
    "Words.wait",
    "Words.read",
    "Words.write",
    "Shard.get",
    "Shard.contains",
    "Shard.put",
    "Shard.put_new",
    "Shard.pop",
    "Shard.spread",
    "cancel",
};
static_assert(std::size(kOperations) == static_cast<size_t>(Do::kCount));

inline constexpr Nanoseconds kNoLimit = -1;

struct Operation {
    Do what = Do::None;
    Kind kind = Kind::Free;  // of the object, for operations on any
    uint8_t silent = 0;      // no answer is wanted
    uint16_t unused = 0;
    uint64_t number = 0;  // by which the answer is known
    uint64_t pid = 0;     // of the process that asks
    Name object;
    Handle answers;      // the channel for the answer
    uint32_t owner = 0;  // the process that asks, in its own node's arena
    uint32_t unused_too = 0;
    uint64_t thread = 0;
    Nanoseconds timeout = 0;  // 0: it does not wait
    uint64_t ticket = 0;      // of a task that is put
    Name words;
    uint64_t a = 0, b = 0, c = 0;
};

// The kinds of messages in a channel for answers, besides those of messages that were got. The ticket is the
// number.
inline constexpr uint32_t kResult = 0x4000;  // a Result
inline constexpr uint32_t kBytes = 0x4001;
inline constexpr uint32_t kError = 0x4002;      // an encoded Error
inline constexpr uint32_t kCancelled = 0x4003;  // what was asked is undone where it is done nevertheless

inline constexpr uint32_t kRecord = 0x4004;  // a record of a dictionary

struct Result {
    uint64_t done = 0, value = 0;
};

// Values of the results of operations on shards that were not done: the key is missing, or may be with
// another manager; or they are not done by the wire.
inline constexpr uint64_t kChosen = 1, kElsewhere = 2;
inline constexpr size_t kSmallRecord = 256 * 1024;  // bytes; larger ones are not sent so
inline constexpr size_t kSpreadRecord = 4 << 20;    // the same, of one for several nodes

// What an operation gave: whether it was done, a number, a message or bytes, or an error.
struct Outcome {
    uint32_t kind = kResult;
    Result result;
    Payload payload;

    static Outcome of(bool done, uint64_t value = 0) { return {kResult, {done, value}, {}}; }
    static Outcome failed(const Error& error) { return {kError, {}, Payload::of(error.encoded())}; }
    bool was_done() const { return kind == kResult ? result.done != 0 : kind < kError; }
};

}  // namespace dragon::wire
