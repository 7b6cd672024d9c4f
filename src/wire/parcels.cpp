#include "parcels.hpp"

#include <cstring>

namespace dragon::wire {

namespace {

constexpr size_t kPacked = 32 * 1024;  // bytes of the largest message that is copied into a parcel

struct PackedHead {
    uint64_t size : 48;
    uint64_t kind : 16;
};

}  // namespace

Status take_parcel(Arena& a, Channel& channel, size_t most, Taken& out) {
    Message message;
    while (out.parcel.size() < most) {
        Status status = channel.get(a, message, 0);
        if (status == Status::Timeout) return Status::Ok;
        if (status != Status::Ok) return out.parcel.empty() ? status : Status::Ok;
        auto block = message.block ? std::make_shared<Block>(&a, message.block) : nullptr;
        const char* data = block ? a.at<char>(block->at) + kDataStart : message.data;
        if (block && message.label.size > kPacked) {
            out.kind = message.label.kind;
            out.large = {data, message.label.size, block, block};
            return Status::Ok;
        }
        PackedHead head{message.label.size, message.label.kind};
        out.parcel.append(reinterpret_cast<const char*>(&head), sizeof head).append(data, message.label.size);
    }
    return Status::Ok;
}

Status put_parcel(Arena& a, Channel& channel, std::string_view parcel, size_t& done) {
    while (done < parcel.size()) {
        PackedHead head;
        size_t left = parcel.size() - done;
        if (left < sizeof head) throw Invalid("a parcel that is cut off");
        memcpy(&head, parcel.data() + done, sizeof head);
        if (head.size > left - sizeof head) throw Invalid("a parcel that is cut off");
        const char* data = parcel.data() + done + sizeof head;
        Status status = put_message(a, channel, head.kind, {data, head.size, nullptr, nullptr});
        if (status != Status::Ok) return status;
        done += sizeof head + head.size;
    }
    return Status::Ok;
}

Status put_message(Arena& a, Channel& channel, uint32_t kind, const Payload& payload, uint64_t ticket,
                   Side side) {
    Label label{kind, payload.size, ticket};
    if (payload.size <= kSmall) return channel.put_small(a, label, payload.data, 0, side);
    if (side == Side::Back && channel.full()) return Status::Timeout;
    std::shared_ptr<Block> block = payload.block;
    if (!block) {
        block = std::make_shared<Block>(kDataStart + payload.size);
        memcpy(a.at<char>(block->at) + kDataStart, payload.data, payload.size);
    }
    Status status = channel.put_block(a, label, block->at, 0, side);
    if (status == Status::Ok) block->pass_on();
    return status;
}

}  // namespace dragon::wire
