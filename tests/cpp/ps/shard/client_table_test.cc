// What a shard remembers of its clients has a bound, and whatever is within it can be saved and
// read back.
#include "ps/shard/client_table.h"

#include <doctest/doctest.h>

#include "base/config.h"

namespace gradring::ps::client_table_test {
namespace {

constexpr std::uint32_t kFirstNobody = 1u << 31;
constexpr std::uint32_t kMany = 10'000;  // Fits once, and not twice.

// Clients with a change each, from `first` on.
ClientTable table_of(std::uint32_t first, std::uint32_t count) {
  ClientTable table;
  for (std::uint32_t i = 0; i < count; ++i) table.enter(first + i, 1).seq = 1;
  return table;
}

std::size_t saved_and_restored(const ClientTable& table) {
  Bytes saved;
  table.save(saved);
  wire::Reader in(saved);
  ClientTable again;
  again.restore(in);
  return again.all().size();
}

TEST_CASE("after a checkpoint with many clients there are no more than can be saved") {
  static_assert(kMany < limits::kPsClients && 2 * kMany > limits::kPsClients);
  ClientTable table = table_of(kFirstNobody, kMany);
  for (auto& [client, state] : table.all()) {
    state.is_given_up = client % 2 == 0;
    state.away_since = Time{} + Millis{1};
    if (client % 10 == 0) state.connection = client;
  }
  table.enter(3, 1).seq = 1;  // A worker.
  table.add(table_of(kFirstNobody + kMany, kMany));
  CHECK(table.all().size() == limits::kPsClients);
  CHECK(saved_and_restored(table) == limits::kPsClients);
  CHECK(table.find(3) != nullptr);
  std::size_t missing = 0;
  for (std::uint32_t client = kFirstNobody; client < kFirstNobody + kMany; ++client)
    if (client % 2 != 0 || client % 10 == 0) missing += table.find(client) == nullptr ? 1 : 0;
  CHECK(missing == 0);  // Whoever is here, or may come back.
}

TEST_CASE("kept answers are found by their numbers, also once they were saved and read back") {
  ClientTable table;
  ClientState& state = table.enter(3, 1);
  CHECK(ClientTable::find_answer(state, 1) == nullptr);
  for (state.seq = 1; state.seq <= 2 * limits::kPsOutcomes; ++state.seq)
    if (state.seq % 2 == 0 || state.seq > limits::kPsOutcomes)
      ClientTable::note_answer(state, {state.seq, 10 * state.seq, 0, Bytes(3)});
  Bytes saved;
  table.save(saved);
  wire::Reader in(saved);
  ClientTable again;
  again.restore(in);
  for (ClientTable* each : {&table, &again}) {
    const ClientState& kept = *each->find(3);
    CHECK(kept.answers.size() == limits::kPsOutcomes);
    CHECK(ClientTable::find_answer(kept, limits::kPsOutcomes) == nullptr);
    for (std::uint64_t seq = limits::kPsOutcomes + 1; seq <= 2 * limits::kPsOutcomes; ++seq) {
      const SmallAnswer* found = ClientTable::find_answer(kept, seq);
      REQUIRE(found != nullptr);
      CHECK(found->pushes == 10 * seq);
      CHECK(found->payload.size() == 3);
    }
    CHECK(ClientTable::find_answer(kept, 2 * limits::kPsOutcomes + 1) == nullptr);
  }
}

TEST_CASE("saved answers that are out of order are refused") {
  ClientTable table;
  ClientState& state = table.enter(3, 1);
  state.seq = 5;
  for (const std::uint64_t seq : {4, 4}) ClientTable::note_answer(state, {seq, 1, 0, Bytes(3)});
  Bytes saved;
  table.save(saved);
  wire::Reader in(saved);
  ClientTable again;
  CHECK_THROWS_AS(again.restore(in), ProtocolError);
}

TEST_CASE("workers of a checkpoint stay, and nobodies make room for them") {
  ClientTable table = table_of(kFirstNobody, kMany);
  table.add(table_of(0, kMany));
  CHECK(table.all().size() == limits::kPsClients);
  for (std::uint32_t worker = 0; worker < kMany; ++worker) REQUIRE(table.find(worker) != nullptr);
}

}  // namespace
}  // namespace gradring::ps::client_table_test
