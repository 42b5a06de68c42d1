// Dense tables pulled and pushed over several shards of a real service, in every encoding: each
// shard's part is encoded for itself, and what comes out is what the codec alone makes of it.
#include "ps/client/dense_calls.h"

#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <vector>

#include "ps/protocol/row_codec.h"
#include "support/ps/service.h"

namespace gradring::testing::dense_calls_test {
namespace {

using namespace gradring::ps;
using wire::RowCodec;

constexpr std::uint32_t kShards = 3;
constexpr RowCodec kCodecs[] = {RowCodec::kFloat32, RowCodec::kBFloat16, RowCodec::kFloat16,
                                RowCodec::kInt8};
static_assert(std::size(kCodecs) == wire::kRowCodecCount);

TableSpec weights_table() {
  TableSpec spec;
  spec.name = "weights";
  spec.kind = TableKind::kDense;
  spec.count = 100003;
  spec.rule.kind = kernels::RuleKind::kSgd;
  spec.rule.lr = 0.5;  // Halves are exact.
  return spec;
}

// What is left of the table's floats after a journey.
std::vector<float> carried(RowCodec codec, const std::vector<float>& values) {
  std::vector<float> found(values.size());
  for (std::uint32_t shard = 0; shard < kShards; ++shard) {
    const DenseRange range = dense_range(values.size(), shard, kShards);
    const std::size_t count = range.end - range.begin;
    Bytes bytes(encoded_rows_bytes(codec, count, 1));
    encode_rows(codec, count, 1, values.data() + range.begin, nullptr, bytes.data());
    decode_rows(codec, count, 1, bytes.data(), found.data() + range.begin);
  }
  return found;
}

// No value of it is one of a codec's, but for float32's.
std::vector<float> some_gradient(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t at = 0; at < count; ++at)
    values[at] = 0.0137f * static_cast<float>(at % 1009) - 7.1f;
  return values;
}

std::vector<float> halved(std::vector<float> values, float times) {
  for (float& value : values) value *= times * 0.5f;
  return values;
}

struct Rig {
  const Service service{1, kShards};
  const std::unique_ptr<Client> client = service.connect(0);
  const std::shared_ptr<RemoteTable> table = make_table(*client, weights_table());

  PushReport push(RowCodec codec, const std::vector<float>& gradient, float* after) {
    const auto call = std::make_shared<PushDenseCall>(
        table, PushDenseCall::Arrays{gradient.data(), after, {}}, codec, std::nullopt);
    client->run(call, kServiceTimeout);
    return call->report();
  }

  std::uint64_t pull(RowCodec codec, std::vector<float>& weights) {
    weights.assign(table->spec.count, -1);
    const auto call = std::make_shared<PullDenseCall>(table, weights.data(), codec, std::nullopt);
    client->run(call, kServiceTimeout);
    return call->version();
  }
};

TEST_CASE("a dense table is pulled and pushed in every encoding, over several shards") {
  for (const RowCodec codec : kCodecs) {
    CAPTURE(static_cast<int>(codec));
    Rig rig;
    const std::vector<float> gradient = some_gradient(rig.table->spec.count);
    const std::vector<float> expected = halved(carried(codec, gradient), -1);
    std::vector<float> found(gradient.size());
    const PushReport report = rig.push(codec, gradient, found.data());
    CHECK(report.rows == gradient.size());
    CHECK(report.refused == 0);
    CHECK(found == carried(codec, expected));
    CHECK(rig.pull(codec, found) == 1);
    CHECK(found == carried(codec, expected));
    // What the servers have was rounded once, on its way there.
    CHECK(rig.pull(RowCodec::kFloat32, found) == 1);
    CHECK(found == expected);
    rig.push(codec, gradient, nullptr);
    CHECK(rig.pull(RowCodec::kFloat32, found) == 2);
    CHECK(found == halved(carried(codec, gradient), -2));
  }
}

TEST_CASE("a gradient that is not finite in one shard's part is refused by all, however encoded") {
  for (const RowCodec codec : kCodecs) {
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      CAPTURE(static_cast<int>(codec));
      CAPTURE(value);
      Rig rig;
      std::vector<float> gradient = some_gradient(rig.table->spec.count);
      gradient.back() = value;
      std::vector<float> found(gradient.size(), -1);
      CHECK(rig.push(codec, gradient, found.data()).refused == 1);
      CHECK(all_are(found, 0));
      rig.pull(RowCodec::kFloat32, found);
      CHECK(all_are(found, 0));
    }
  }
}

}  // namespace
}  // namespace gradring::testing::dense_calls_test
