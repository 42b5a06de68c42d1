// One cut through all shards (promise P11), as the saver's client takes it: freeze every shard,
// find out how far each client has come on any of them, let all shards come there, cut. Blocks;
// callable from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ps/client/client.h"

namespace gradring::ps {

using TableStamps = std::map<std::uint64_t, std::uint64_t>;  // By table id.

struct CutRequest {
  std::vector<std::string> jobs;   // What each shard's owner has to do, by shard.
  std::vector<TableStamps> bases;  // What is there already, by shard: only later changes. May be
                                   // empty.
  Millis freeze{10000};            // For at most so long pushes are held back.
  Millis timeout{60000};
};
struct Cut {
  std::uint64_t number = 0;
  std::vector<std::uint64_t> lineages;  // By shard.
  std::vector<TableStamps> stamps;      // By shard: what the cut has.
};

// Throws TimedOut that names the clients a shard waited for in vain; then nothing was cut that has
// to be kept, and everybody goes on.
Cut take_cut(Client& client, const CutRequest& request);
// Has every shard load; `jobs` by shard. Returns the number to wait for. Where one of them cannot
// begin, no other goes on with it.
std::uint64_t begin_load(Client& client, const std::vector<std::string>& jobs, Millis timeout);
// Has the owners of all shards do the same with what was loaded. Returns the number to wait for.
std::uint64_t go_on_with_load(Client& client, const std::string& job, Millis timeout);
// Every shard that can be reached drops at once what it has of it, begun or not. Not after shards
// were told to take it over: one may just be about to. Throws the first failure of those that
// cannot be reached.
void give_up_load(Client& client, std::uint64_t number);
// Has the owner of every shard that can be reached do this behind what it was told before; throws
// as give_up_load().
void end_load(Client& client, const std::string& job);
// The owners' results, by shard, once all of them have finished. Throws the first failure.
std::vector<std::string> await_job(Client& client, std::uint64_t number, Millis timeout);

// Pure: how far every client has to come on each shard, so that what belongs together is together.
std::vector<std::vector<Position>> targets_of(const std::vector<std::vector<Position>>& frozen);

}  // namespace gradring::ps
