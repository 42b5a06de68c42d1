// What pushes of rows in fewer bytes leave for the next ones, whatever becomes of them.
#include <doctest/doctest.h>

#include <numeric>

#include "ps/protocol/row_codec.h"
#include "support/ps/net.h"

namespace gradring::testing::push_residuals_test {
namespace {

using namespace gradring::ps;
using gradring::testing::PsNet;

std::vector<std::uint64_t> ids_up_to(std::uint64_t count) {
  std::vector<std::uint64_t> ids(count);
  std::iota(ids.begin(), ids.end(), 1);
  return ids;
}

std::vector<float> pulled(PsNet& net, const std::shared_ptr<RemoteTable>& table,
                          const std::vector<std::uint64_t>& ids) {
  std::vector<float> rows(ids.size(), -1.0f);
  net.run(
      std::make_shared<PullCall>(std::vector<PullItem>{{table, ids, rows.data()}}, PullOptions{}));
  return rows;
}

// 1 + 2^-9 is 1 in bfloat16; 2^-9 is left.
constexpr float kRounded = 1 + 0.001953125f;

std::shared_ptr<PushCall> packed(const std::shared_ptr<RemoteTable>& table,
                                 const std::vector<std::uint64_t>& ids,
                                 const std::vector<float>& gradients) {
  PushOptions options;
  options.codec = wire::RowCodec::kBFloat16;
  return std::make_shared<PushCall>(
      std::vector<PushItem>{{table, ids, gradients.data(), nullptr, {}}}, options);
}

std::vector<float> taken(RemoteTable& table, const std::vector<std::uint64_t>& ids) {
  std::vector<float> residuals(ids.size());
  table.residuals.take(ids, residuals.data());
  return residuals;
}

TEST_CASE("a push that is refused, or whose fate is unknown, leaves nothing for the next one") {
  PsNet net(2);
  const auto table = net.make_table(testing::counting_table("counts", 1));
  const auto unknown =
      std::make_shared<RemoteTable>(testing::counting_table("nobody made this", 1), net.shards());
  const std::vector<std::uint64_t> ids = ids_up_to(100);
  const std::vector<float> gradients(100, kRounded);
  const auto wrong = packed(unknown, ids, gradients);
  net.submit(wrong);
  net.pass(Millis{50});
  CHECK(wrong->failure().kind == ErrorKind::kInvalidArgument);
  CHECK(taken(*unknown, ids) == std::vector<float>(100, 0.0f));

  const auto done = packed(table, ids, gradients);
  net.run(done);
  CHECK(taken(*table, ids) == std::vector<float>(100, 0.001953125f));
  net.run(packed(table, ids, gradients));
  net.requests = [](std::uint32_t, const wire::PsHeader&) { return -1; };
  const auto lost = packed(table, ids, gradients);
  net.submit(lost);
  net.settle();
  net.core().cancel(*lost, {ErrorKind::kInterrupted, -1, "Ctrl-C"});
  CHECK(taken(*table, ids) == std::vector<float>(100, 0.0f));
}

TEST_CASE("pushes of one row that are under way together leave the sum of what they left out") {
  PsNet net(1);
  const auto table = net.make_table(testing::counting_table("counts", 1));
  const std::vector<std::uint64_t> ids = ids_up_to(10);
  const std::vector<float> gradients(10, kRounded);
  const std::vector<std::shared_ptr<PushCall>> calls{packed(table, ids, gradients),
                                                     packed(table, ids, gradients)};
  for (const auto& call : calls) net.submit(call);
  net.pass(Millis{50});
  CHECK(pulled(net, table, ids) == std::vector<float>(10, 2.0f));
  CHECK(taken(*table, ids) == std::vector<float>(10, 2 * 0.001953125f));
}

TEST_CASE("a part that has to go out once more carries the same bytes") {
  const auto table = std::make_shared<RemoteTable>(testing::counting_table("counts", 1), 1);
  const std::vector<std::uint64_t> ids{7, 3, 7, 5, 7};
  const std::vector<float> gradients{kRounded, 1, 0.5f, kRounded, 2};
  for (const auto codec : {wire::RowCodec::kFloat32, wire::RowCodec::kBFloat16}) {
    PushOptions options;
    options.codec = codec;
    PushCall call({{table, ids, gradients.data(), nullptr, {}}}, options);
    PushCall another({{table, ids, gradients.data(), nullptr, {}}}, options);
    const auto rows_of = [](PushCall& of) {
      const auto bytes = of.body(0).second;
      return Bytes(bytes.begin(), bytes.end());
    };
    const Bytes first = rows_of(call);
    call.sent(0);
    rows_of(another);  // Whose sums may lie where the first ones were.
    CHECK(first.size() == encoded_rows_bytes(codec, 1, 3));
    CHECK(rows_of(call) == first);
    call.sent(0);
    call.release(0);
  }
}

}  // namespace
}  // namespace gradring::testing::push_residuals_test
