// Requests to a shard as plain values: what the tests and the simulation of the parameter server
// send. The tail is put in front of a numbered one by whoever sends it. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "ps/protocol/payloads.h"
#include "ps/shard/shard.h"

namespace gradring::testing {

using Ids = std::vector<std::uint64_t>;
using Values = std::vector<float>;

struct Request {
  wire::PsHeader header;
  Bytes rest;  // The payload, for a numbered one after its tail.
};

struct PushWishes {
  std::uint64_t seen = 0;
  bool returns_rows = false;
  bool is_last_part = true;
  std::optional<wire::Round> round = {};
  wire::RowCodec codec = wire::RowCodec::kFloat32;
};

ps::TableSpec sum_table(const std::string& name, std::uint32_t dim);

Request make_table(const ps::TableSpec& spec);
Request push(const std::string& table, const Ids& ids, const Values& rows,
             const PushWishes& wishes = {});
Request push_dense(const std::string& table, const Values& values, const PushWishes& wishes = {});
Request clock(std::uint64_t domain, std::uint64_t clock, const ps::ClockPayload& payload);
Request leave(std::uint64_t domain);
Request tick(std::uint32_t tick);
// Of all tables if it is "".
Request shrink(const std::string& table, float least_score, std::uint32_t unseen_ticks);
// Whole rows, with their state. `steps`: of the table, if they are told.
Request write_rows(const std::string& table, const std::vector<ps::RowMeta>& metas,
                   const Values& floats, const std::optional<std::uint64_t>& steps = {});
// Of this shard: its weights, and its state or nothing.
Request write_dense(const std::string& table, std::uint64_t steps, const Values& floats);
// `number`: see RuleOrder; 0: whatever is in force.
Request set_rule(const std::string& table, const kernels::Rule& rule, std::uint64_t number = 0);
// What the client sends in place of a change that was given up.
Request nothing();

Request pull(const std::string& table, const Ids& ids, const std::optional<wire::Gate>& gate = {});
Request pull_dense(const std::string& table, const std::optional<wire::Gate>& gate = {});
Request pull_changed(const std::string& table, std::uint64_t since, std::uint64_t most);
// Of a dense table: all of it.
Request read_rows(const std::string& table, std::uint64_t most);

Request freeze(std::uint64_t cut, Millis limit);
Request advance(std::uint64_t cut, Millis limit, const std::vector<ps::Position>& positions);
Request cut(std::uint64_t cut, const std::string& text);
Request thaw(std::uint64_t cut);
Request load(std::uint64_t cut, const std::string& text);
Request job(std::uint64_t cut);

Bytes hello_payload(std::uint32_t client, std::uint64_t incarnation);

// An answer as it comes out of its connection.
ps::Frame arrived(ps::Answer answer);

// What an answer says.
Values floats_of(std::span<const std::byte> bytes);
struct PulledRows {
  Values rows;
  std::vector<std::uint32_t> versions;
};
PulledRows rows_of(const wire::PsHeader& answer, std::span<const std::byte> payload,
                   std::size_t dim);

}  // namespace gradring::testing
