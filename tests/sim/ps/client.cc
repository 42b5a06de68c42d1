#include "sim/ps/client.h"

#include <algorithm>

namespace gradring::sim {
namespace {

std::vector<std::string> addresses_of(const PsScenario& scenario) {
  std::vector<std::string> addresses;
  for (std::uint32_t shard = 0; shard < scenario.shards(); ++shard)
    addresses.push_back(str("server ", shard / scenario.threads));
  return addresses;
}

}  // namespace

PsClient::PsClient(const PsScenario& scenario, std::uint32_t number, std::uint64_t process,
                   PsNetwork& network, Trace& trace)
    : scenario_(scenario),
      number_(number),
      process_(process),
      network_(network),
      trace_(trace),
      core_(
          {{number, process}, addresses_of(scenario), scenario.answer_time, scenario.flight_bytes}),
      connections_(scenario.shards()) {}

CallPtr PsClient::submit(const std::string& what, const std::vector<Addressed>& requests,
                         bool may_wait) {
  const auto call = std::make_shared<ps::PlainCall>(what, may_wait);
  for (const auto& [shard, request] : requests)
    call->add(shard, request.header, request.rest, request.header.count);
  submit(call);
  return call;
}

void PsClient::submit(const CallPtr& call) {
  trace_.note(now(), static_cast<Rank>(number_), call->what());
  core_.submit(call, scenario_.call_timeout, now());
}

CallPtr PsClient::submit_to_all(const std::string& what, const testing::Request& request,
                                bool may_wait) {
  std::vector<Addressed> requests;
  for (std::uint32_t shard = 0; shard < shards(); ++shard) requests.push_back({shard, request});
  return submit(what, requests, may_wait);
}

bool PsClient::step() {
  bool moved = false;
  for (std::uint32_t shard = 0; shard < connections_.size(); ++shard) {
    Connection& connection = connections_[shard];
    ps::Session& session = core_.session(shard);
    if (connection.link && session.wants_hang_up()) disconnect(shard, session.trouble());
    if (!connection.link && session.wants_connection(now())) connect(shard);
    if (!connection.link) continue;
    try {
      moved |= push(shard);
      if (connection.link) moved |= pull(shard);
    } catch (const ProtocolError& error) {
      disconnect(shard, str("its answer makes no sense: ", error.what()));
    }
  }
  core_.tick(now());
  return moved;
}

void PsClient::connect(std::uint32_t shard) {
  connections_[shard].link = dial(*this, shard);
  connections_[shard].reader = ps::FrameReader();
  if (connections_[shard].link)
    core_.session(shard).connected(now());
  else
    core_.session(shard).disconnected("the connection was refused", now());
}

void PsClient::disconnect(std::uint32_t shard, const std::string& why) {
  trace_.note(now(), static_cast<Rank>(number_), str("shard ", shard, ": ", why));
  connections_[shard].link.reset();
  core_.session(shard).disconnected(why, now());
}

bool PsClient::push(std::uint32_t shard) {
  Connection& connection = connections_[shard];
  ps::Session& session = core_.session(shard);
  bool moved = false;
  while (true) {
    std::array<std::span<const std::byte>, 3> spans = session.output(now()).spans;
    const auto end = std::remove_if(spans.begin(), spans.end(), [](auto s) { return s.empty(); });
    const auto used = end - spans.begin();
    if (used == 0) return moved;
    const auto second = used > 1 ? spans[1] : std::span<const std::byte>();
    const transport::Io io = connection.link->send_some(spans[0], second);
    if (io.closed) {
      disconnect(shard, "the server closed the connection");
      return true;
    }
    session.sent(io.bytes, now());
    moved |= io.bytes > 0;
    if (io.bytes < spans[0].size() + second.size()) return moved;
  }
}

bool PsClient::pull(std::uint32_t shard) {
  Connection& connection = connections_[shard];
  ps::Session& session = core_.session(shard);
  bool moved = false;
  while (true) {
    switch (connection.reader.read(*connection.link)) {
      case ps::FrameReader::Step::kNothing: return moved;
      case ps::FrameReader::Step::kClosed:
        disconnect(shard, "the server closed the connection");
        return true;
      case ps::FrameReader::Step::kMoved:
        if (connection.reader.is_inside_frame()) session.moved(now());
        break;
      case ps::FrameReader::Step::kHeader: break;
      case ps::FrameReader::Step::kFrame:
        core_.receive(shard, connection.reader.header(), connection.reader.payload(), now());
        if (session.wants_hang_up()) return true;
        break;
    }
    moved = true;
  }
}

}  // namespace gradring::sim
