#include "ps/shard/client_table.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "base/config.h"

namespace gradring::ps {
namespace {

constexpr std::uint32_t kFirstNobody = 1u << 31;  // From here on: clients that are no workers.
constexpr std::size_t kErrorKindCount = 11;

void save_client(wire::Writer& writer, std::uint32_t client, const ClientState& state) {
  writer.put(client);
  writer.put(state.incarnation);
  writer.put(state.seq);
  writer.put(static_cast<std::uint32_t>(state.tail.size()));
  for (const std::uint64_t seq : state.tail) writer.put(seq);
  writer.put(static_cast<std::uint32_t>(state.failed.size()));
  for (const auto& [seq, failure] : state.failed) {
    writer.put(seq);
    writer.put(failure.kind);
    writer.put(failure.rank);
    writer.put_text(failure.text);
  }
  writer.put(static_cast<std::uint32_t>(state.answers.size()));
  for (const SmallAnswer& answer : state.answers) {
    writer.put(answer.seq);
    writer.put(answer.pushes);
    writer.put(answer.stamp);
    writer.put(static_cast<std::uint32_t>(answer.payload.size()));
    writer.put_bytes(answer.payload);
  }
}

// Who has changed nothing yet left no trace: the log does not know of them either.
void save_clients(wire::Writer& writer, const std::map<std::uint32_t, ClientState>& clients) {
  const auto has_history = [](const auto& entry) { return entry.second.seq > 0; };
  writer.put(
      static_cast<std::uint32_t>(std::count_if(clients.begin(), clients.end(), has_history)));
  for (const auto& [client, state] : clients)
    if (state.seq > 0) save_client(writer, client, state);
}

ClientState restored_client(wire::Reader& in) {
  ClientState state;
  state.incarnation = in.get<std::uint64_t>();
  state.seq = in.get<std::uint64_t>();
  state.tail.resize(in.get_count(limits::kPsShards));
  for (std::uint64_t& seq : state.tail) seq = in.get<std::uint64_t>();
  const std::uint32_t failures = in.get_count(limits::kPsOutcomes);
  for (std::uint32_t k = 0; k < failures; ++k) {
    Failure& failure = state.failed[in.get<std::uint64_t>()];
    failure.kind = in.get_enum<ErrorKind>(kErrorKindCount);
    failure.rank = in.get<Rank>();
    failure.text = in.get_text();
  }
  const std::uint32_t answers = in.get_count(limits::kPsOutcomes);
  for (std::uint32_t k = 0; k < answers; ++k) {
    SmallAnswer answer;
    answer.seq = in.get<std::uint64_t>();
    if (!state.answers.empty() && answer.seq <= state.answers.back().seq)
      throw ProtocolError("answers that are out of order");
    answer.pushes = in.get<std::uint64_t>();
    answer.stamp = in.get<std::uint64_t>();
    const auto payload = in.take(in.get_count(limits::kPsSmallAnswerBytes));
    answer.payload.assign(payload.begin(), payload.end());
    state.answers.push_back(std::move(answer));
  }
  return state;
}

}  // namespace

ClientState& ClientTable::enter(std::uint32_t client, std::uint64_t incarnation) {
  const auto found = clients_.find(client);
  newest_incarnation_ = std::max(newest_incarnation_, incarnation);
  if (found == clients_.end()) {
    if (clients_.size() >= limits::kPsClients)
      throw InvalidArgument(str("this server has ", clients_.size(), " clients already"));
    return clients_[client] = begun(client, incarnation);
  }
  ClientState& state = found->second;
  if (incarnation < state.incarnation)
    throw Closed(str("a later process took over as client ", client,
                     "; this one's requests are not taken any more"));
  if (incarnation > state.incarnation) {
    const bool had_history = state.seq > 0 || state.had_history;
    state = begun(client, incarnation);
    state.had_history = had_history;
  }
  return state;
}

// As the checkpoint knew this very process, or anew.
ClientState ClientTable::begun(std::uint32_t client, std::uint64_t incarnation) {
  ClientState state;
  state.incarnation = incarnation;
  const auto found = foreign_.find(client);
  if (found == foreign_.end()) return state;
  const bool is_replaced = found->second.incarnation < incarnation;
  if (found->second.incarnation == incarnation) state = std::move(found->second);
  if (is_replaced || state.seq > 0) foreign_.erase(found);
  return state;
}

const ClientState* ClientTable::find(std::uint32_t client) const {
  const auto found = clients_.find(client);
  return found == clients_.end() ? nullptr : &found->second;
}

ClientState* ClientTable::find(std::uint32_t client) {
  const auto found = clients_.find(client);
  return found == clients_.end() ? nullptr : &found->second;
}

std::optional<std::uint32_t> ClientTable::in_the_way_of(std::uint32_t client) const {
  if (clients_.size() < limits::kPsClients || clients_.contains(client)) return std::nullopt;
  // Workers have few numbers and keep theirs; the others come and go. Who is away for a moment only
  // may be about to send again what it does not know to be done.
  auto oldest = clients_.end();
  for (auto entry = clients_.lower_bound(kFirstNobody); entry != clients_.end(); ++entry) {
    if (entry->second.connection || !entry->second.is_given_up) continue;
    if (oldest == clients_.end() || entry->second.away_since < oldest->second.away_since)
      oldest = entry;
  }
  if (oldest == clients_.end()) return std::nullopt;
  return oldest->first;
}

void ClientTable::note_failure(ClientState& state, std::uint64_t seq, const Failure& failure) {
  state.failed[seq] = failure;
  if (state.failed.size() > limits::kPsOutcomes) state.failed.erase(state.failed.begin());
}

void ClientTable::note_answer(ClientState& state, SmallAnswer answer) {
  state.answers.push_back(std::move(answer));
  if (state.answers.size() > limits::kPsOutcomes) state.answers.pop_front();
}

const SmallAnswer* ClientTable::find_answer(const ClientState& state, std::uint64_t seq) {
  const auto found =
      std::lower_bound(state.answers.begin(), state.answers.end(), seq,
                       [](const SmallAnswer& kept, std::uint64_t of) { return kept.seq < of; });
  return found == state.answers.end() || found->seq != seq ? nullptr : &*found;
}

void ClientTable::save(Bytes& out) const {
  wire::Writer writer;
  save_clients(writer, clients_);
  if (!foreign_.empty()) save_clients(writer, foreign_);
  put_bytes(out, writer.take());
}

void ClientTable::restore(wire::Reader& in) {
  for (Clients* clients : {&clients_, &foreign_}) {
    const std::uint32_t count = in.get_count(limits::kPsClients);
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto client = in.get<std::uint32_t>();
      ClientState state = restored_client(in);
      newest_incarnation_ = std::max(newest_incarnation_, state.incarnation);
      clients->emplace(client, std::move(state));
    }
    if (in.left() == 0) return;
  }
}

void ClientTable::add(ClientTable others) {
  newest_incarnation_ = std::max(newest_incarnation_, others.newest_incarnation_);
  clients_.merge(others.clients_);
  shed(clients_);
  foreign_.merge(others.foreign_);
  shed(foreign_);
}

void ClientTable::add_foreign(ClientTable others) {
  newest_incarnation_ = std::max(newest_incarnation_, others.newest_incarnation_);
  foreign_ = std::move(others.clients_);
  foreign_.merge(others.foreign_);
  std::erase_if(foreign_, [this](auto& entry) { return clients_.contains(entry.first); });
  // What belonged together there is over: no cut waits for the rest of it.
  for (auto& [client, state] : foreign_) state.tail.clear();
  shed(foreign_);
}

// More than can be saved would end all checkpoints and logs. Who is least likely to come again goes
// first: the given up, those of a file before those that were here, and workers last.
void ClientTable::shed(Clients& clients) {
  if (clients.size() <= limits::kPsClients) return;
  const auto staying = [](const auto& entry) {
    const ClientState& state = entry->second;
    return std::tuple(entry->first < kFirstNobody, !state.is_given_up, state.away_since,
                      state.incarnation);
  };
  std::vector<Clients::iterator> away;
  for (auto entry = clients.begin(); entry != clients.end(); ++entry)
    if (!entry->second.connection) away.push_back(entry);
  std::sort(away.begin(), away.end(),
            [&](const auto& a, const auto& b) { return staying(a) < staying(b); });
  away.resize(std::min(away.size(), clients.size() - limits::kPsClients));
  for (const auto& entry : away) clients.erase(entry);
}

}  // namespace gradring::ps
