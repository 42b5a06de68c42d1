#include "ps/shard/shard.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/config.h"
#include "ps/shard/shard_state.h"

namespace gradring::ps {

using wire::PsHeader;
using wire::PsType;

namespace {

std::span<const std::uint64_t> get_pull_ids(const Frame& request, std::size_t ids_at) {
  const std::size_t bytes = request.payload.size() - ids_at;
  if (bytes != std::size_t{request.header.count} * sizeof(std::uint64_t))
    throw ProtocolError(str("pull: ", bytes, " bytes for ", request.header.count, " ids"));
  return {reinterpret_cast<const std::uint64_t*>(request.payload.data() + ids_at),
          request.header.count};
}

}  // namespace

Failure no_memory() {
  return {ErrorKind::kInvalidArgument, -1,
          "the server has not the memory for this answer: ask for less at once, or give it more"};
}

Closed domain_is_over() {
  return Closed(
      "the domain is over: its workers have left, or were given up when they had no connection for "
      "too long");
}

Shard::Shard(const ShardOptions& options, Journal& journal)
    : impl_(std::make_unique<Impl>(options, journal)) {}
Shard::~Shard() = default;

void Shard::connected(Connection connection, Time) {
  impl_->guests[connection];
}

void Shard::disconnected(Connection connection, Time now) {
  impl_->guests.erase(connection);
  std::erase_if(impl_->parked, [&](const auto& one) { return one.connection == connection; });
  std::erase_if(impl_->waiting, [&](const auto& one) { return one.connection == connection; });
  for (auto& [client, state] : impl_->clients.all()) {
    if (state.connection != connection) continue;
    state.connection.reset();
    state.away_since = state.has_said_goodbye ? now - impl_->options.client_grace : now;
  }
}

bool Shard::takes_from(Connection connection) const {
  const auto guest = impl_->guests.find(connection);
  return guest != impl_->guests.end() && guest->second.held_bytes < impl_->options.held_bytes;
}

bool Shard::has_more(Connection connection) const {
  const auto guest = impl_->guests.find(connection);
  return guest != impl_->guests.end() && guest->second.is_kept_back;
}

void Shard::go_on(Connection connection, Time now, std::vector<Answer>& answers) {
  const auto found = impl_->guests.find(connection);
  if (found == impl_->guests.end()) return;
  Impl::Guest& guest = found->second;
  guest.released_bytes = 0;
  guest.is_kept_back = false;
  impl_->release_held_of(connection, guest, now, answers);
  impl_->settle_advance(answers);
  impl_->open_gates(now, answers);
}

void Shard::receive(Connection connection, Frame frame, Time now, std::vector<Answer>& answers) {
  const auto found = impl_->guests.find(connection);
  if (found == impl_->guests.end()) return;
  Impl::Guest& guest = found->second;
  if (static_cast<std::uint8_t>(frame.header.type) > wire::kLastPsRequest)
    throw ProtocolError("frame: an answer where a request belongs");
  if (frame.header.type == PsType::kHello) {
    if (guest.client && *guest.client != decode_hello(frame.payload).client)
      throw ProtocolError("frame: a second hello, of another client");
    impl_->hello(connection, guest, frame, answers);
    impl_->settle_advance(answers);
    return;
  }
  if (!guest.client) throw ProtocolError("frame: a request before the hello");
  const std::uint32_t client = *guest.client;
  const PsType type = frame.header.type;
  const bool follows_held = !guest.held.empty() && !is_control(frame.header.type);
  if (follows_held || impl_->is_held(frame, client)) {
    impl_->hold(guest, std::move(frame));
    return;
  }
  if (wire::is_numbered(frame.header.type)) {
    impl_->change(connection, client, std::move(frame), answers);
    impl_->settle_advance(answers);
  } else {
    impl_->read(connection, client, std::move(frame), now, answers);
  }
  // Nothing else moves a domain, and a model's pulls may wait here by the thousand.
  const bool may_open = type == PsType::kClock || type == PsType::kLeave || is_control(type);
  if (may_open && !impl_->parked.empty()) impl_->open_gates(now, answers);
}

void Shard::tick(Time now, std::vector<Answer>& answers) {
  if (std::exchange(impl_->has_let_changes_go, false)) {
    impl_->release_held(now, answers);
    impl_->settle_advance(answers);
  }
  for (auto& [client, state] : impl_->clients.all()) {
    if (state.connection || state.is_given_up || impl_->holds_changes) continue;
    // Restored from a log: it may come back, from now on.
    if (state.away_since == Time{}) state.away_since = now;
    if (now - state.away_since < impl_->options.client_grace) continue;
    impl_->give_up(client);
  }
  if (impl_->loading && now >= impl_->end_of_load()) impl_->loading.reset();
  if (impl_->frozen) impl_->melt(now, answers);
  impl_->open_gates(now, answers);
}

Spares& Shard::spares() {
  return impl_->spares;
}

Time Shard::next_tick() const {
  if (impl_->has_let_changes_go) return Time{};
  Time next = Time::max();
  for (const auto& [client, state] : impl_->clients.all())
    if (!state.connection && !state.is_given_up && !impl_->holds_changes)
      next = std::min(next, state.away_since == Time{}
                                ? Time{}
                                : state.away_since + impl_->options.client_grace);
  if (impl_->loading) next = std::min(next, impl_->end_of_load());
  if (impl_->frozen) next = std::min(next, impl_->end_of_freeze());
  if (impl_->frozen && impl_->frozen->advancing)
    next = std::min(next, impl_->frozen->advancing->until);
  for (const auto& one : impl_->parked)
    if (!one.is_let_through) next = std::min(next, one.until);
  return next;
}

void Shard::replay(const PsHeader& header, std::span<const std::byte> payload, std::uint32_t client,
                   std::uint64_t incarnation) {
  // Marks: where a checkpoint was taken or loaded.
  if (header.type == PsType::kCut || header.type == PsType::kLoad) return;
  if (header.type == PsType::kGoodbye) return impl_->clients.forget(client);
  if (header.seq == 0) {
    if (ClientState* state = impl_->clients.find(client)) state->is_given_up = true;
    impl_->forget(client);
    return;
  }
  ClientState& state = impl_->clients.enter(client, incarnation);
  if (header.seq != state.seq + 1)
    throw ProtocolError(
        str("log: request ", header.seq, " of client ", client, " follows ", state.seq));
  Bytes bytes;
  put_bytes(bytes, payload);
  try {
    impl_->accept(header, bytes, client, state, nullptr);
  } catch (const ProtocolError&) {
    // As the first time: its sender was cut off, and nothing else came of it.
    if (state.seq != header.seq) throw;
  }
}

std::uint64_t Shard::newest_incarnation() const {
  return impl_->clients.newest_incarnation();
}

std::string Shard::stats() const {
  return impl_->stats();
}

void Shard::Impl::hello(Connection connection, Guest& guest, const Frame& frame, Answers& answers) {
  const Hello hello = decode_hello(frame.payload);
  while (const auto oldest = clients.in_the_way_of(hello.client)) make_room(*oldest);
  try {
    ClientState& state = clients.enter(hello.client, hello.incarnation);
    guest.client = hello.client;
    // On a bad network the last words of a connection may come after the first ones of the next.
    if (state.connection && *state.connection > connection)
      throw Closed("this client has a later connection");
    state.connection = connection;
    state.has_said_goodbye = false;
    state.is_given_up = false;
    Frame answer = answer_to(frame.header, PsType::kWelcome);
    answer.header.a = options.incarnation;
    answer.header.b = state.seq;
    answer.payload =
        encode(Welcome{options.shard, options.shards, options.host_key, options.unix_name});
    answers.push_back({connection, std::move(answer)});
  } catch (const Error& error) {
    answers.push_back({connection, error_to(frame.header, Failure::from(error))});
  }
}

void Shard::Impl::read(Connection connection, std::uint32_t client, Frame frame, Time now,
                       Answers& answers) {
  ClientState* state = clients.find(client);
  if (state == nullptr || state->connection != connection) {
    answers.push_back({connection, replaced_to(frame.header)});
    return;
  }
  if (frame.header.seq > state->seq && !is_control(frame.header.type)) {
    // What it wants to see of its own writes has not come yet, or was lost: it sends them again.
    Frame answer = answer_to(frame.header, PsType::kOutOfOrder);
    answer.header.b = state->seq;
    answers.push_back({connection, std::move(answer)});
    return;
  }
  try {
    switch (frame.header.type) {
      case PsType::kPull:
      case PsType::kPullDense: pull(connection, std::move(frame), now, answers); break;
      case PsType::kPullChanged: answers.push_back({connection, changed_of(frame, client)}); break;
      case PsType::kReadRows: answers.push_back({connection, whole_rows_of(frame)}); break;
      case PsType::kStats: {
        Frame answer = answer_to(frame.header, PsType::kText);
        answer.payload = encode_text(stats());
        answers.push_back({connection, std::move(answer)});
        break;
      }
      case PsType::kGoodbye:
        state->has_said_goodbye = true;
        answers.push_back({connection, answer_to(frame.header, PsType::kDone)});
        break;
      default: control(connection, frame, now, answers);
    }
  } catch (const ProtocolError&) {
    throw;
  } catch (const Error& error) {
    answers.push_back({connection, error_to(frame.header, Failure::from(error))});
  } catch (const std::bad_alloc&) {
    answers.push_back({connection, error_to(frame.header, no_memory())});
  }
}

void Shard::Impl::pull(Connection connection, Frame frame, Time now, Answers& answers) {
  if ((frame.header.flags & wire::kHasGate) == 0) {
    answers.push_back(answer_pull(connection, frame, 0));
    return;
  }
  wire::Reader in(frame.payload);
  const wire::Gate gate = get_gate(in);
  const std::size_t ids_at = frame.payload.size() - in.left();
  const auto domain = domains.find(gate.domain);
  if (domain == domains.end() && gate.clock > 0) throw domain_is_over();
  if (domain == domains.end() || domain->second.is_open(gate)) {
    answers.push_back(answer_pull(connection, frame, ids_at));
    return;
  }
  if (domain->second.is_hopeless(gate)) domain->second.why_closed(gate).raise();
  // What makes no sense is this connection's fault, not that of whoever opens the gate.
  if (frame.header.type == PsType::kPull) get_pull_ids(frame, ids_at);
  guests.at(connection).held_bytes += bytes_of(frame);
  parked.push_back({connection, std::move(frame), gate, ids_at, now + Millis{gate.wait_ms}});
}

Answer Shard::Impl::answer_pull(Connection connection, const Frame& frame, std::size_t ids_at) {
  try {
    if (frame.header.type == PsType::kPullDense) return dense_of(connection, frame);
    return {connection, rows_of(frame, ids_at)};
  } catch (const ProtocolError&) {
    throw;
  } catch (const Error& error) {
    return {connection, error_to(frame.header, Failure::from(error))};
  } catch (const std::bad_alloc&) {
    return {connection, error_to(frame.header, no_memory())};
  }
}

Frame Shard::Impl::rows_of(const Frame& request, std::size_t ids_at) {
  Table& table = store.require(request.header.table, request.header.layout, TableKind::kSparse);
  const auto ids = get_pull_ids(request, ids_at);
  store.require_ours(ids);
  Frame answer = answer_to(request.header, PsType::kRows);
  answer.header.count = request.header.count;
  answer.header.a = table.pushes;
  answer.header.b = table.stamp();
  const std::size_t bytes = encoded_rows_bytes(request.header.codec, table.spec.dim, ids.size());
  if (bytes > limits::kPsRowsBytes)
    throw InvalidArgument(str("pull: ", ids.size(), " rows of table '", table.spec.name, "' are ",
                              bytes, " bytes, and one request may ask for ", limits::kPsRowsBytes));
  answer.payload = spares.take(bytes);
  store.read_rows(table, ids, request.header.codec, request.header.b == 1, answer.payload);
  return answer;
}

Answer Shard::Impl::dense_of(Connection connection, const Frame& request) {
  Table& table = store.require(request.header.table, request.header.layout, TableKind::kDense);
  Answer answer{connection, answer_to(request.header, PsType::kDense)};
  PsHeader& header = answer.frame.header;
  header.a = table.pushes;
  header.b = table.stamp();
  if (request.header.a != 0 && request.header.a == table.stamp()) return answer;
  header.count = static_cast<std::uint32_t>(table.dense->count());
  answer.shared = store.share_dense(table, request.header.codec);
  return answer;
}

Frame Shard::Impl::changed_of(const Frame& request, std::uint32_t client) {
  Table& table = store.require(request.header.table, request.header.layout, TableKind::kSparse);
  const std::size_t row_bytes =
      sizeof(std::uint64_t) + encoded_rows_bytes(request.header.codec, table.spec.dim, 1);
  const std::size_t most = std::min<std::size_t>(
      request.header.b, std::max<std::size_t>(1, limits::kPsPartBytes * 8 / row_bytes));
  const auto changed = table.sparse->changed(request.header.a, client, most);
  if (changed.ids.size() > limits::kPsPayloadBytes / row_bytes)
    throw InvalidArgument(str("changed rows of table '", table.spec.name, "': one call changed ",
                              changed.ids.size(), " rows, of ", row_bytes,
                              " bytes each, and one answer has at most ", limits::kPsPayloadBytes,
                              " bytes; push fewer rows in a call"));
  Frame answer = answer_to(request.header, PsType::kChanged);
  answer.header.a = changed.since;
  answer.header.b = changed.more ? 1 : 0;
  answer.header.count = static_cast<std::uint32_t>(changed.ids.size());
  put_bytes(answer.payload, std::as_bytes(std::span(changed.ids)));
  store.read_rows(table, changed.ids, request.header.codec, false, answer.payload);
  return answer;
}

Frame Shard::Impl::whole_rows_of(const Frame& request) {
  Table& table = store.require(request.header.table, request.header.layout);
  Frame answer = answer_to(request.header, PsType::kWholeRows);
  if (table.dense) {
    const std::uint64_t steps = table.dense->steps();
    answer.header.flags = wire::kIsDense;
    answer.header.count = static_cast<std::uint32_t>(table.dense->count());
    put_bytes(answer.payload, std::as_bytes(std::span(&steps, 1)));
    put_bytes(answer.payload, std::as_bytes(table.dense->weights()));
    put_bytes(answer.payload, std::as_bytes(table.dense->state()));
    return answer;
  }
  const std::size_t row_bytes = sizeof(RowMeta) + table.sparse->row_floats() * sizeof(float);
  const std::size_t most = std::min<std::size_t>(
      request.header.b, std::max<std::size_t>(1, limits::kPsPartBytes * 8 / row_bytes));
  const auto rows = table.sparse->read(request.header.a, most);
  answer.header.a = rows.cursor;
  answer.header.b = rows.more ? 1 : 0;
  answer.header.seq = lineage;
  answer.header.count = static_cast<std::uint32_t>(rows.metas.size());
  put_bytes(answer.payload, std::as_bytes(std::span(rows.metas)));
  put_bytes(answer.payload, std::as_bytes(std::span(rows.floats)));
  return answer;
}

std::string Shard::Impl::stats() const {
  JsonWriter json;
  json.open_object().member("shard", std::uint64_t{options.shard});
  json.member("shards", std::uint64_t{options.shards}).key("tables");
  store.stats(json);
  json.key("clients").open_array();
  for (const auto& [client, state] : clients.all()) {
    json.open_object().member("client", std::uint64_t{client});
    json.member("seq", state.seq).member("connected", state.connection.has_value());
    json.member("given_up", state.is_given_up).close_object();
  }
  json.close_array().key("domains").open_array();
  for (const auto& [id, domain] : domains) domain.stats(id, json);
  json.close_array().close_object();
  return json.take();
}

}  // namespace gradring::ps
