#include "support/ps/service.h"

#include "ps/client/plain_call.h"
#include "ps/tables/partition.h"

namespace gradring::testing {

using namespace gradring::ps;
using transport::TransportMode;

Service::Service(std::uint32_t count, std::uint32_t threads, TransportMode mode) {
  for (std::uint32_t index = 0; index < count; ++index) {
    ServerOptions options;
    options.threads = threads;
    options.index = index;
    options.servers = count;
    options.credentials = {kServiceSecret};
    options.mode = mode;
    servers.push_back(std::make_unique<Server>(options));
    addresses.push_back(servers.back()->address());
  }
}

std::unique_ptr<Client> Service::connect(std::uint32_t number, TransportMode mode,
                                         Millis timeout) const {
  ClientOptions options;
  options.servers = addresses;
  options.credentials = {kServiceSecret};
  options.client = number;
  options.mode = mode;
  options.timeout = timeout;
  return std::make_unique<Client>(options);
}

std::shared_ptr<RemoteTable> make_table(Client& client, const TableSpec& spec) {
  const auto call = std::make_shared<PlainCall>("make table");
  wire::PsHeader header;
  header.type = wire::PsType::kMakeTable;
  Bytes head;
  put(head, spec);
  call->add_to_all(client.shards(), header, head);
  client.run(call, kServiceTimeout);
  return std::make_shared<RemoteTable>(spec, client.shards());
}

TableSpec counts(std::uint32_t dim) {
  TableSpec spec;
  spec.name = "counts";
  spec.dim = dim;
  spec.rule.kind = kernels::RuleKind::kSum;
  return spec;
}

std::vector<std::uint64_t> ids_of(std::size_t count, std::uint64_t distinct) {
  std::vector<std::uint64_t> ids;
  for (std::size_t at = 0; at < count; ++at) ids.push_back(mix_id(at * 7 % distinct));
  return ids;
}

void push_ones(Client& client, const std::shared_ptr<RemoteTable>& table,
               const std::vector<std::uint64_t>& ids) {
  const std::vector<float> ones(ids.size() * table->spec.dim, 1.0f);
  client.run(std::make_shared<PushCall>(
                 std::vector<PushItem>{{table, ids, ones.data(), nullptr, {}}}, PushOptions{}),
             kServiceTimeout);
}

std::vector<float> pull(Client& client, const std::shared_ptr<RemoteTable>& table,
                        const std::vector<std::uint64_t>& ids) {
  std::vector<float> rows(ids.size() * table->spec.dim, -1.0f);
  client.run(
      std::make_shared<PullCall>(std::vector<PullItem>{{table, ids, rows.data()}}, PullOptions{}),
      kServiceTimeout);
  return rows;
}

bool all_are(const std::vector<float>& values, float expected) {
  for (const float value : values)
    if (value != expected) return false;
  return true;
}

}  // namespace gradring::testing
