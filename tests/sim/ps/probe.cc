#include "sim/ps/probe.h"

#include <cstring>
#include <stdexcept>

#include "base/text.h"
#include "support/ps/requests.h"
#include "support/ps/shard_rig.h"

namespace gradring::sim {
namespace {

constexpr ps::Connection kConnection = ~std::uint64_t{0};
constexpr std::uint32_t kNumber = 0xffffffff;

}  // namespace

PsProbe::PsProbe(ps::Shard& shard, Time now) : shard_(shard), now_(now) {
  shard_.connected(kConnection, now_);
  ps::Frame hello;
  hello.payload = testing::hello_payload(kNumber, 1);
  ask(std::move(hello));
}

PsProbe::~PsProbe() {
  shard_.disconnected(kConnection, now_);
}

ps::Frame PsProbe::ask(ps::Frame request) {
  request.header.payload_bytes = request.payload.size();
  std::vector<ps::Answer> answers;
  shard_.receive(kConnection, std::move(request), now_, answers);
  for (ps::Answer& answer : answers)
    if (answer.to == kConnection) return testing::arrived(std::move(answer));
  throw std::logic_error("a probe has no answer");
}

std::vector<float> PsProbe::row(const std::string& table, std::uint64_t id) {
  const testing::Request request = testing::pull(table, {id});
  const ps::Frame answer = ask({request.header, request.rest});
  if (testing::error_of(answer) != ErrorKind::kNone) return {};
  const std::size_t dim = (answer.payload.size() - sizeof(std::uint32_t)) / sizeof(float);
  return testing::rows_of(answer.header, answer.payload, dim).rows;
}

std::vector<std::byte> PsProbe::dense(const std::string& table) {
  const testing::Request request = testing::read_rows(table, 0);
  const ps::Frame answer = ask({request.header, request.rest});
  if (testing::error_of(answer) != ErrorKind::kNone) return {};
  return {answer.payload.begin(), answer.payload.end()};
}

std::string PsProbe::rule(const std::string& table) const {
  const std::string stats = shard_.stats();
  const std::size_t begin = stats.find(str("{\"name\":\"", table, "\""));
  if (begin == std::string::npos) return "";
  return stats.substr(begin, stats.find(",\"rows\"", begin) - begin);
}

std::map<std::uint64_t, std::vector<std::byte>> PsProbe::rows(const std::string& table) {
  std::map<std::uint64_t, std::vector<std::byte>> found;
  ps::Frame request;
  request.header = testing::read_rows(table, 1u << 20).header;
  bool has_more = true;
  while (has_more) {
    const ps::Frame answer = ask(request);
    if (testing::error_of(answer) != ErrorKind::kNone) return {};
    const std::size_t count = answer.header.count;
    const std::size_t metas = count * sizeof(ps::RowMeta);
    const std::size_t floats = count == 0 ? 0 : (answer.payload.size() - metas) / count;
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte* meta = answer.payload.data() + i * sizeof(ps::RowMeta);
      std::uint64_t id = 0;
      std::memcpy(&id, meta, sizeof id);
      std::vector<std::byte>& row = found[id];
      row.assign(meta, meta + sizeof(ps::RowMeta));
      const std::byte* values = answer.payload.data() + metas + i * floats;
      row.insert(row.end(), values, values + floats);
    }
    request.header.a = answer.header.a;
    has_more = answer.header.b == 1;
  }
  return found;
}

}  // namespace gradring::sim
