// Operations of other nodes' processes on the shards of dictionaries of this node. What may take long is not
// done: large values, and writes that find the shard's lock taken or that need more memory. The process then
// sends its request to the agent's thread for shards, where it may wait.
#pragma once

#include <map>
#include <memory>

#include "../store/shard.hpp"
#include "operations.hpp"

namespace dragon::wire {

class Shards {
  public:
    // The caller keeps the words and the lock attached until forget().
    void serve(Name words, Name lock, const store::Settings& settings);
    void forget(Name words) { shards_.erase(words.handle().offset); }
    Outcome perform(const Operation& operation, std::string_view payload);

  private:
    struct Served {
        Name name;
        Lock& lock;
        store::Shard shard;
    };
    Outcome read(store::Shard& shard, const Operation& operation, std::string_view key);
    Outcome write(Served& served, const Operation& operation, std::string_view key,
                  const store::Record& record);

    std::map<Offset, std::unique_ptr<Served>> shards_;
};

// A record in an operation, or in its outcome.
std::string encoded(const store::Record& record);
store::Record decoded(std::string_view text);

inline bool is_of_shard(Do what) { return what >= Do::ShardGet && what <= Do::ShardPop; }

}  // namespace dragon::wire
