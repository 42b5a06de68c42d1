// Numbered requests: each is done once, in its client's order, and goes through the journal first.
#include <algorithm>
#include <new>

#include "base/config.h"
#include "ps/shard/shard_state.h"

namespace gradring::ps {
namespace {

using wire::PsHeader;
using wire::PsType;

std::span<const std::uint64_t> get_ids(wire::Reader& in, std::uint32_t count) {
  const auto bytes = in.take(std::size_t{count} * sizeof(std::uint64_t));
  return {reinterpret_cast<const std::uint64_t*>(bytes.data()), count};
}

std::optional<std::uint64_t> steps_of(const PsHeader& write) {
  const bool tells = (write.flags & wire::kTellsSteps) != 0 || write.a > 0;
  return tells ? std::optional(write.a) : std::nullopt;
}

// Tables of the library's own are left alone by what is said of all: their rows count things.
bool is_own(const TableSpec& spec) {
  return spec.name.starts_with("gradring/");
}

// What is left of the payload, for the table to use as scratch.
std::span<std::byte> rest_of(std::span<std::byte> payload, wire::Reader& in) {
  return payload.last(in.left());
}

}  // namespace

Frame answer_to(const PsHeader& request, PsType type) {
  Frame frame;
  frame.header.type = type;
  frame.header.request = request.request;
  frame.header.table = request.table;
  frame.header.codec = request.codec;
  return frame;
}

Frame error_to(const PsHeader& request, const Failure& failure) {
  Frame frame = answer_to(request, PsType::kError);
  frame.header.a = static_cast<std::uint64_t>(failure.kind);
  frame.header.b = static_cast<std::uint64_t>(static_cast<std::int64_t>(failure.rank));
  frame.payload = encode_text(failure.text);
  return frame;
}

Frame replaced_to(const PsHeader& request) {
  return error_to(request,
                  {ErrorKind::kClosed, -1,
                   "a later process took over as this client; its requests are not taken"});
}

Change parse_change(const PsHeader& header, std::span<std::byte> payload) {
  wire::Reader in(payload);
  Change change;
  change.tail = get_tail(in);
  if ((header.flags & wire::kHasRound) != 0) change.round = get_round(in);
  switch (header.type) {
    case PsType::kMakeTable: change.spec = get_spec(in); break;
    case PsType::kSetRule: change.rule = get_rule(in); break;
    case PsType::kPush: change.ids = get_ids(in, header.count); [[fallthrough]];
    case PsType::kPushDense:
    case PsType::kWriteRows: change.values = rest_of(payload, in); break;
    case PsType::kClock: change.clock = get_clock(in); break;
    case PsType::kShrink: change.least_score = std::bit_cast<float>(in.get<std::uint32_t>()); break;
    default: break;
  }
  return change;
}

void Shard::Impl::change(Connection connection, std::uint32_t client, Frame frame,
                         Answers& answers) {
  ClientState* state = clients.find(client);
  if (state == nullptr || state->connection != connection) {
    answers.push_back({connection, replaced_to(frame.header)});
    return;
  }
  const std::uint64_t seq = frame.header.seq;
  if (seq <= state->seq) {
    answers.push_back({connection, again(*state, frame)});
    return;
  }
  if (seq != state->seq + 1) {
    Frame answer = answer_to(frame.header, PsType::kOutOfOrder);
    answer.header.b = state->seq;
    answers.push_back({connection, std::move(answer)});
    return;
  }
  settle_memory(frame);
  reserve_more(answers, 1);
  Frame answer;
  try {
    accept(frame.header, frame.payload, client, *state, &answer);
  } catch (const std::bad_alloc&) {
    // The journal had no room for it, and nothing was done.
    if (!refuse_for_memory(frame)) throw;
    accept(frame.header, frame.payload, client, *state, &answer);
  }
  answers.push_back({connection, std::move(answer)});
  spares.give(std::move(frame.payload));
}

// The whole of a small one, and the numbers of any that says something.
void Shard::Impl::note_answer(ClientState& state, const PsHeader& request, const Frame& answer) {
  const auto numbers = std::span(answer.payload).first(kOutcomeBytes);
  const bool has_news =
      std::any_of(numbers.begin(), numbers.end(), [](std::byte b) { return b != std::byte{0}; });
  const bool is_small = answer.payload.size() <= limits::kPsSmallAnswerBytes;
  const bool has_rows = (request.flags & wire::kReturnsRows) != 0;
  if (!has_news && !(is_small && has_rows)) return;
  Bytes kept = is_small ? answer.payload : Bytes(numbers.begin(), numbers.end());
  ClientTable::note_answer(state, {request.seq, answer.header.a, answer.header.b, std::move(kept)});
}

Frame Shard::Impl::again(const ClientState& state, const Frame& request) {
  const auto failed = state.failed.find(request.header.seq);
  if (failed != state.failed.end()) return error_to(request.header, failed->second);
  Frame answer = answer_to(request.header, PsType::kDone);
  const bool wants_rows = (request.header.flags & wire::kReturnsRows) != 0;
  if (const auto* kept = ClientTable::find_answer(state, request.header.seq)) {
    answer.header.a = kept->pushes;
    answer.header.b = kept->stamp;
    answer.payload = kept->payload;
    if (answer.payload.size() > kOutcomeBytes) {
      wire::Reader in(answer.payload);
      const Outcome outcome = get_outcome(in);
      if (outcome.refused + outcome.not_admitted > 0)
        answer.header.flags |= request.header.flags & wire::kTellsSkipped;
      return answer;
    }
    if (!wants_rows) return answer;
  } else {
    put(answer.payload, Outcome{});
  }
  const auto found = store.all().find(request.header.table);
  if (found == store.all().end()) return answer;
  Table& table = found->second;
  answer.header.a = table.pushes;
  answer.header.b = table.stamp();
  if (!wants_rows) return answer;
  // There were too many to keep. The rows as they are now: at least as new as when it was done.
  try {
    Bytes payload = request.payload;
    const Change change = parse_change(request.header, payload);
    const bool is_rows = table.sparse && request.header.type == PsType::kPush;
    const bool is_dense = table.dense && request.header.type == PsType::kPushDense;
    // It need not be what came the first time: without their values, a few bytes of ids ask for
    // any number of rows.
    if (is_rows || is_dense)
      store.require_fit(table, {change.ids, request.header.codec, change.values});
    if (is_rows) store.read_rows(table, change.ids, request.header.codec, false, answer.payload);
    if (is_dense) store.read_dense(table, request.header.codec, answer.payload);
    return answer;
  } catch (const ProtocolError&) {
    throw;
  } catch (const Error& error) {
    return error_to(request.header, Failure::from(error));
  } catch (const std::bad_alloc&) {
    return error_to(request.header, no_memory());
  }
}

// Throws std::bad_alloc if the journal finds no memory: then nothing is done.
void Shard::Impl::accept(const PsHeader& header, std::span<std::byte> payload, std::uint32_t client,
                         ClientState& state, Frame* answer) {
  Change change = parse_change(header, payload);
  journal->append(header, payload, client, state.incarnation);
  // A new process begins: what the one before it gave to unfinished rounds it gives anew.
  if (header.seq == 1)
    for (auto& [id, domain] : domains) domain.drop_unfinished(client);
  state.seq = header.seq;
  state.tail = std::move(change.tail);
  state.is_given_up = false;
  try {
    Frame result = apply_or_refuse(header, change, client, state);
    if (answer != nullptr) *answer = std::move(result);
  } catch (const std::bad_alloc&) {
    // Half of it may be done: this shard stops.
    throw memory_is_full(str(wire::name(header.type), " of ", change.ids.size(), " ids (",
                             payload.size(), " bytes)"));
  }
}

Frame Shard::Impl::apply_or_refuse(const PsHeader& header, const Change& change,
                                   std::uint32_t client, ClientState& state) {
  Failure failure;
  try {
    Frame result = apply(header, change, client);
    with_last_memory([&] { note_answer(state, header, result); });
    return result;
  } catch (const ProtocolError&) {
    throw;
  } catch (const Error& error) {
    failure = Failure::from(error);
  }
  with_last_memory([&] { ClientTable::note_failure(state, header.seq, failure); });
  return error_to(header, failure);
}

Outcome Shard::Impl::apply_push(const PsHeader& header, const Change& change,
                                std::uint32_t client) {
  const TableKind kind = header.type == PsType::kPush ? TableKind::kSparse : TableKind::kDense;
  Table& table = store.require(header.table, header.layout, kind);
  const Gradients gradients{change.ids, header.codec, change.values};
  if (!change.round)
    return store.push(table, gradients, client,
                      {.seen = header.a,
                       .is_last_part = (header.flags & wire::kIsLastPart) != 0,
                       .tells_skipped = (header.flags & wire::kTellsSkipped) != 0});
  const auto domain = domains.find(change.round->domain);
  if (domain == domains.end())
    throw Closed(str("push to '", table.spec.name, "': a contribution to a round of a domain that ",
                     "no worker has opened, or that is over: its workers have left, or were given ",
                     "up when they had no connection for too long"));
  store.require_fit(table, gradients);
  store.contribute(table, gradients,
                   domain->second.contribution(client, change.round->clock, header.table));
  return {};
}

Outcome Shard::Impl::change_rule(const PsHeader& header, const Change& change,
                                 std::uint32_t client) {
  Table& table = store.require(header.table, header.layout);
  Outcome outcome;
  const std::uint32_t whose = header.b == 0 ? client : static_cast<std::uint32_t>(header.b - 1);
  outcome.refused = store.change_rule(table, change.rule, {header.a, whose}) ? 0 : 1;
  outcome.workers = table.rule_order.number;
  return outcome;
}

Frame Shard::Impl::apply(const PsHeader& header, const Change& change, std::uint32_t client) {
  require_memory_was_found(header);
  Frame answer = answer_to(header, PsType::kDone);
  answer.payload = std::move(answer_room);
  Outcome outcome;
  const Table* made = nullptr;
  switch (header.type) {
    case PsType::kMakeTable:
      if (header.a == wire::kNoMemory) throw no_memory_for(change.spec);
      made = &store.make(change.spec);
      break;
    case PsType::kSetRule: outcome = change_rule(header, change, client); break;
    case PsType::kPush:
    case PsType::kPushDense: outcome = apply_push(header, change, client); break;
    case PsType::kWriteRows:
      store.write(store.require(header.table, header.layout), header.count, change.values, client,
                  steps_of(header));
      break;
    case PsType::kClock: {
      Domain fresh;
      const auto known = domains.find(header.a);
      if (known == domains.end() && domains.size() >= limits::kPsDomains)
        throw InvalidArgument(str("clock: a server has at most ", limits::kPsDomains,
                                  " domains; leave those that are not in use"));
      Domain& domain = known == domains.end() ? fresh : known->second;
      domain.set_clock(client, header.b, change.clock);
      if (known == domains.end()) domains.emplace(header.a, std::move(fresh));
      settle_rounds();
      outcome.workers = domains.at(header.a).living();
      break;
    }
    case PsType::kLeave:
      for (auto& [id, domain] : domains)
        if (header.a == 0 || header.a == id) domain.leave(client);
      std::erase_if(domains, [](const auto& entry) { return entry.second.is_over(); });
      break;
    case PsType::kTick:
    case PsType::kShrink:
      if (header.table != 0) store.require(header.table, header.layout);
      if (header.type == PsType::kTick && header.table == 0)
        store.note_tick(static_cast<std::uint32_t>(header.a));
      for (auto& [id, table] : store.all()) {
        if (!table.sparse || (header.table == 0 ? is_own(table.spec) : header.table != id))
          continue;
        outcome.workers +=
            header.type == PsType::kTick
                ? table.sparse->set_tick(static_cast<std::uint32_t>(header.a))
                : table.sparse->shrink(change.least_score, static_cast<std::uint32_t>(header.a));
      }
      break;
    default: throw ProtocolError(str("frame: ", wire::name(header.type), " carries no number"));
  }
  if (!outcome.skipped.empty()) answer.header.flags |= wire::kTellsSkipped;
  put(answer.payload, outcome);
  if (made != nullptr) put(answer.payload, RuleInForce{made->rule_order, made->rule()});
  const auto found = store.all().find(header.table);
  if (found == store.all().end()) return answer;
  answer.header.a = found->second.pushes;
  answer.header.b = found->second.stamp();
  if ((header.flags & wire::kReturnsRows) != 0 && header.type == PsType::kPush)
    store.read_rows(found->second, change.ids, header.codec, false, answer.payload);
  if ((header.flags & wire::kReturnsRows) != 0 && header.type == PsType::kPushDense)
    store.read_dense(found->second, header.codec, answer.payload);
  return answer;
}

void Shard::Impl::settle_rounds() {
  for (auto& [id, domain] : domains)
    while (domain.has_ready_round()) store.apply_round(domain.take_ready_round());
}

void Shard::Impl::give_up(std::uint32_t client) {
  ClientState* state = clients.find(client);
  if (state == nullptr) return;
  state->is_given_up = true;
  const bool is_worker = std::any_of(domains.begin(), domains.end(), [client](const auto& entry) {
    return entry.second.has(client);
  });
  if (!is_worker) return;
  // Rounds and bounds depend on it, so it is part of the history.
  PsHeader header;
  header.type = PsType::kLeave;
  journal->append(header, {}, client, state->incarnation);
  forget(client);
}

// Its number is free: should it come back, it begins with its first request.
void Shard::Impl::make_room(std::uint32_t client) {
  const ClientState& state = *clients.find(client);
  PsHeader header;
  header.type = PsType::kGoodbye;
  if (state.seq > 0 || state.had_history) journal->append(header, {}, client, state.incarnation);
  clients.forget(client);
}

void Shard::Impl::forget(std::uint32_t client) {
  for (auto& [id, domain] : domains) domain.lose(client);
  std::erase_if(domains, [](const auto& entry) { return entry.second.is_over(); });
}

bool Shard::Impl::may_answer(Guest& guest) {
  guest.is_kept_back |= guest.released_bytes >= options.answer_bytes;
  return !guest.is_kept_back;
}

void Shard::Impl::open_gates(Time at, Answers& answers) {
  std::vector<Parked> before = std::move(parked);
  parked.clear();
  for (Parked& one : before) {
    Guest& guest = guests.at(one.connection);
    Failure failure;
    if (!one.is_let_through) {
      const auto domain = domains.find(one.gate.domain);
      if (domain == domains.end())
        failure = Failure::from(domain_is_over());
      else if (domain->second.is_open(one.gate))
        one.is_let_through = true;
      else if (one.until <= at || domain->second.is_hopeless(one.gate))
        failure = domain->second.why_closed(one.gate);
    }
    const bool is_over = failure || (one.is_let_through && may_answer(guest));
    if (!is_over) {
      parked.push_back(std::move(one));
      continue;
    }
    guest.held_bytes -= bytes_of(one.frame);
    answers.push_back(failure ? Answer{one.connection, error_to(one.frame.header, failure)}
                              : answer_pull(one.connection, one.frame, one.ids_at));
    guest.released_bytes += answers.back().payload().size();
  }
}

}  // namespace gradring::ps
