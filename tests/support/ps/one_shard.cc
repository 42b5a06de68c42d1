#include "support/ps/one_shard.h"

#include <cstring>

#include "base/error.h"
#include "support/ps/requests.h"

namespace gradring::testing {
namespace {

using wire::PsType;

ps::TableSpec sparse_spec() {
  ps::TableSpec spec;
  spec.name = "rows";
  spec.dim = OneShard::kDim;
  spec.rule.kind = kernels::RuleKind::kSum;
  spec.init = {ps::InitKind::kUniform, -1, 1};
  spec.seed = 5;
  return spec;
}

ps::TableSpec dense_spec() {
  ps::TableSpec spec;
  spec.name = "array";
  spec.kind = ps::TableKind::kDense;
  spec.count = 1000;
  spec.rule.kind = kernels::RuleKind::kAdam;
  return spec;
}

std::vector<float> floats_of(const ps::Frame& frame) {
  std::vector<float> floats(frame.payload.size() / sizeof(float));
  std::memcpy(floats.data(), frame.payload.data(), floats.size() * sizeof(float));
  return floats;
}

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& items) {
  return std::as_bytes(std::span(items));
}

}  // namespace

OneShard::OneShard(const ps::LogFolderOptions& options, std::uint64_t snapshot_bytes)
    : options_(options), log_(std::make_unique<ps::LogFolder>(options)) {
  ps::ShardOptions shard;
  shard.shard = options.shard;
  shard.shards = options.shards;
  shard.incarnation = 99;
  shard.snapshot_bytes = snapshot_bytes;
  shard_ = std::make_unique<ps::Shard>(shard, *log_);
  log_->replay(*shard_);
}

OneShard::~OneShard() = default;

ps::Frame OneShard::ask(wire::PsHeader header, Bytes payload) {
  header.payload_bytes = payload.size();
  std::vector<ps::Answer> answers;
  shard_->receive(connection_, {header, std::move(payload)}, Time{}, answers);
  if (answers.empty()) throw InternalError("the shard gave no answer");
  ps::Frame answer = arrived(std::move(answers.front()));
  if (answer.header.type == PsType::kError)
    Failure{static_cast<ErrorKind>(answer.header.a), -1, ps::decode_text(answer.payload)}.raise();
  return answer;
}

std::uint64_t OneShard::join(std::uint64_t incarnation) {
  shard_->connected(++connection_, Time{});
  wire::PsHeader header;
  header.type = PsType::kHello;
  seq_ = ask(header, ps::encode(ps::Hello{kClient, incarnation})).header.b;
  return seq_;
}

void OneShard::change(wire::PsHeader header, const Bytes& payload) {
  header.seq = ++seq_;
  const ps::Frame answer = ask(header, payload);
  if (answer.header.type != PsType::kDone) throw InternalError("not done");
}

void OneShard::make_tables() {
  for (const ps::TableSpec& spec : {sparse_spec(), dense_spec()}) {
    wire::PsHeader header;
    header.type = PsType::kMakeTable;
    header.table = ps::table_id(spec.name);
    Bytes payload;
    ps::put(payload, wire::Tail{});
    ps::put(payload, spec);
    change(header, payload);
  }
}

void OneShard::push(const std::vector<std::uint64_t>& ids, float value) {
  wire::PsHeader header;
  header.type = PsType::kPush;
  header.flags = wire::kIsLastPart;
  header.table = ps::table_id("rows");
  header.count = static_cast<std::uint32_t>(ids.size());
  Bytes payload;
  ps::put(payload, wire::Tail{});
  ps::put_bytes(payload, bytes_of(ids));
  ps::put_bytes(payload, bytes_of(std::vector<float>(ids.size() * kDim, value)));
  change(header, payload);
}

void OneShard::push_dense(float value) {
  wire::PsHeader header;
  header.type = PsType::kPushDense;
  header.flags = wire::kIsLastPart;
  header.table = ps::table_id("array");
  const ps::DenseRange range = ps::dense_range(1000, options_.shard, options_.shards);
  header.count = static_cast<std::uint32_t>(range.end - range.begin);
  Bytes payload;
  ps::put(payload, wire::Tail{});
  ps::put_bytes(payload, bytes_of(std::vector<float>(header.count, value)));
  change(header, payload);
}

std::vector<float> OneShard::rows(const std::vector<std::uint64_t>& ids) {
  wire::PsHeader header;
  header.type = PsType::kPull;
  header.table = ps::table_id("rows");
  header.count = static_cast<std::uint32_t>(ids.size());
  header.seq = seq_;
  header.b = 1;
  Bytes payload;
  ps::put_bytes(payload, bytes_of(ids));
  return floats_of(ask(header, payload));
}

std::vector<float> OneShard::dense() {
  wire::PsHeader header;
  header.type = PsType::kPullDense;
  header.table = ps::table_id("array");
  header.seq = seq_;
  return floats_of(ask(header, {}));
}

}  // namespace gradring::testing
