// How long a client waits for an answer before it asks again on a new connection: from when the
// server may have come to it.
#include <doctest/doctest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "base/config.h"
#include "support/ps/net.h"

namespace gradring::testing::answer_time_test {

namespace {

using namespace gradring::ps;

const std::vector<std::uint64_t> kIds{1, 2, 3};

std::shared_ptr<PullCall> pull_of(const std::shared_ptr<RemoteTable>& table,
                                  const std::vector<std::uint64_t>& ids, std::vector<float>& rows) {
  return std::make_shared<PullCall>(std::vector<PullItem>{{table, ids, rows.data()}},
                                    PullOptions{});
}

// Whether it has come to that.
std::shared_ptr<bool> lose_first_pull(PsNet& net) {
  const auto is_lost = std::make_shared<bool>(false);
  net.requests = [is_lost](std::uint32_t, const wire::PsHeader& header) {
    if (header.type != wire::PsType::kPull || *is_lost) return 1;
    *is_lost = true;
    return -1;
  };
  return is_lost;
}

}  // namespace

TEST_CASE("an answer that never comes makes the client ask again on a new connection") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 8));
  const auto is_lost = lose_first_pull(net);
  std::vector<float> rows(24, -1.0f);
  const auto pull = pull_of(table, kIds, rows);
  net.run(pull);
  REQUIRE(pull->is_done());
  CHECK_FALSE(pull->failure());
  CHECK(*is_lost);
  CHECK(rows == std::vector<float>(24, 0.0f));
}

TEST_CASE("an answer that never comes is missed also while later ones do") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 8));
  lose_first_pull(net);
  std::vector<float> rows(24, -1.0f), others(24);
  const auto lost = pull_of(table, kIds, rows);
  net.submit(lost);
  for (int turn = 0; turn < 8 && !lost->is_done(); ++turn) {
    net.submit(pull_of(table, kIds, others));
    net.pass(Millis{100});
  }
  REQUIRE(lost->is_done());
  CHECK_FALSE(lost->failure());
  CHECK(rows == std::vector<float>(24, 0.0f));
}

TEST_CASE("answers that come one by one over a narrow link keep its connection") {
  PsNet net(1);
  const auto table = net.make_table(counting_table("counts", 8));
  std::vector<std::uint64_t> ids(100000);
  std::iota(ids.begin(), ids.end(), 0);
  const std::vector<float> ones(ids.size() * 8, 1.0f);
  int hellos = 0;
  net.requests = [&](std::uint32_t, const wire::PsHeader& header) {
    if (header.type == wire::PsType::kHello) ++hellos;
    return 1;
  };
  // All are sent at once, and a connection without an answer is given up after 500 ms.
  net.set_frame_time(Millis{300});
  const auto push = std::make_shared<PushCall>(
      std::vector<PushItem>{{table, ids, ones.data(), nullptr, {}}}, PushOptions{});
  net.run(push);
  CHECK_FALSE(push->failure());
  CHECK(hellos == 0);
  net.set_frame_time(Millis{0});
  std::vector<float> rows(ones.size());
  net.run(pull_of(table, ids, rows));
  CHECK(rows == ones);
}

}  // namespace gradring::testing::answer_time_test
