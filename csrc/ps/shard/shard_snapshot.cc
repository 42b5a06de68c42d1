// What a checkpoint has of a shard: records {kind u64, table u64, bytes u64} and their payload. A
// layout record comes first, then clients, specs of tables and domains, then contributions to
// rounds that are not complete, then the tables' rows.
#include <algorithm>
#include <array>
#include <cstring>

#include "base/config.h"
#include "ps/shard/shard_state.h"

namespace gradring::ps {
namespace {

// The values are part of the checkpoint format: append, never renumber.
enum class RecordKind : std::uint64_t {
  kLayout = 1,
  kClients = 2,
  kDomain = 3,
  kTable = 4,
  kPiece = 5,
  kContribution = 6,
};
using RecordHeader = std::array<std::uint64_t, 3>;

// As long as calls wait for a connection, if nobody has said otherwise: then the loader has given
// up.
constexpr Millis kPreparedAway{60'000};

RecordHeader record_header(RecordKind kind, std::uint64_t table, std::uint64_t bytes) {
  return {static_cast<std::uint64_t>(kind), table, bytes};
}

void put_record(Bytes& out, RecordKind kind, std::uint64_t table,
                std::span<const std::byte> payload) {
  const RecordHeader header = record_header(kind, table, payload.size());
  put_bytes(out, std::as_bytes(std::span(header)));
  put_bytes(out, payload);
}

struct Ours {
  std::uint32_t shard;
  std::uint32_t shards;
};

bool is_ours(void* context, std::uint64_t id) {
  const auto* ours = static_cast<const Ours*>(context);
  return shard_of(id, ours->shards) == ours->shard;
}

}  // namespace

// One piece with all that is small, and one for each contribution, which may be as long as a table.
std::deque<Bytes> Shard::Impl::front_of_snapshot() const {
  std::deque<Bytes> pieces(1);
  Bytes& front = pieces.front();
  wire::Writer layout;
  layout.put(options.shard);
  layout.put(options.shards);
  layout.put(lineage);
  layout.put(std::uint64_t{store.told_tick()});
  put_record(front, RecordKind::kLayout, 0, layout.take());
  Bytes windows;
  clients.save(windows);
  put_record(front, RecordKind::kClients, 0, windows);
  for (const auto& [id, domain] : domains) {
    Bytes state;
    domain.save(state);
    put_record(front, RecordKind::kDomain, id, state);
    domain.for_each_contribution([&pieces, domain_id = id](Bytes given) {
      put_record(pieces.emplace_back(), RecordKind::kContribution, domain_id, given);
    });
  }
  for (const auto& [id, table] : store.all()) {
    Bytes payload;
    wire::Writer counters;
    for (const std::uint64_t count : {table.pushes, table.steps, table.rows_pushed,
                                      table.rows_pulled, table.refused, table.not_admitted})
      counters.put(count);
    put_bytes(payload, counters.take());
    put(payload, SavedSpec{table.spec, table.rule(), table.rule_order});
    put_record(front, RecordKind::kTable, id, payload);
  }
  return pieces;
}

bool Shard::next_snapshot_piece(std::uint64_t cut, std::size_t most_bytes, SnapshotBytes& out) {
  auto& snapshot = impl_->snapshot;
  // Not the same as "no more": a file that ends here would lack what was not read yet. And what is
  // read here of another one would be missing in its file.
  if (!snapshot || snapshot->cut != cut)
    throw InvalidArgument("there is no snapshot to read: it was ended, or the shard was loaded");
  if (!snapshot->front.empty()) {
    const Bytes& next = snapshot->front.front();
    out.append(next);
    snapshot->front.pop_front();
    return true;
  }
  while (!snapshot->tables.empty()) {
    const std::uint64_t id = snapshot->tables.back();
    Table& table = impl_->store.all().at(id);
    const std::size_t at = out.size();
    out.extend(sizeof(RecordHeader));
    const bool has_more = table.sparse ? table.sparse->next_snapshot_piece(most_bytes, out)
                                       : table.dense->next_snapshot_piece(most_bytes, out);
    const std::uint64_t bytes = out.size() - at - sizeof(RecordHeader);
    const RecordHeader header = record_header(RecordKind::kPiece, id, bytes);
    std::memcpy(out.data() + at, header.data(), sizeof header);
    if (bytes == 0) out.cut_to(at);
    if (!has_more) snapshot->tables.pop_back();
    if (bytes > 0) return true;
  }
  return false;
}

void Shard::end_snapshot(std::uint64_t cut) {
  if (impl_->snapshot && impl_->snapshot->cut == cut) impl_->end_snapshot();
}

void Shard::Impl::end_snapshot() {
  if (!snapshot) return;
  snapshot.reset();
  for (auto& [id, table] : store.all()) {
    if (table.sparse)
      table.sparse->end_snapshot();
    else
      table.dense->end_snapshot();
  }
}

void Shard::begin_load(std::uint64_t staging) {
  if (impl_->loading && impl_->loading->staging != staging &&
      !impl_->is_left_behind(*impl_->loading))
    throw InvalidArgument(
        "another load of a checkpoint is under way: load it once, from one worker");
  std::optional<std::uint32_t> client;
  std::uint64_t incarnation = 0;
  if (staging != kOwnLoad) {
    client = impl_->who_asked_for(staging);
    const ClientState* state = client ? impl_->clients.find(*client) : nullptr;
    if (state == nullptr || state->is_given_up)
      throw Closed("the client that wanted to load a checkpoint was lost, or has given it up");
    incarnation = state->incarnation;
  }
  Impl::Loading& fresh = impl_->loading.emplace(impl_->empty_store());
  fresh.staging = staging;
  fresh.client = client;
  fresh.incarnation = incarnation;
}

void Shard::prepare_load(std::uint64_t staging) {
  impl_->loading_of(staging).is_prepared = true;
}

void Shard::abandon_load(std::uint64_t staging) {
  if (impl_->loading && impl_->loading->staging == staging) impl_->loading.reset();
}

// By its client, at any time before it has told shards to take it over. A job that has not begun
// yet finds nobody who has asked for it.
void Shard::Impl::give_up_load(std::uint64_t staging, std::uint32_t client) {
  std::erase(known_jobs, std::pair(staging, client));
  if (loading && loading->client == client && loading->staging == staging) loading.reset();
}

// Whose it is was given up, or is another process by now.
bool Shard::Impl::is_left_behind(const Loading& load) {
  if (!load.client) return false;
  const ClientState* state = clients.find(*load.client);
  return state == nullptr || state->is_given_up || state->incarnation != load.incarnation;
}

// Of one that is prepared other shards may be about to take over their part, or have been told to:
// what its client has asked for is done, whatever became of that, and until it asks it may be away
// for longer.
Time Shard::Impl::end_of_load() const {
  if (!loading->client) return Time::max();
  const ClientState* state = clients.find(*loading->client);
  const bool is_gone = state == nullptr || state->incarnation != loading->incarnation ||
                       (!state->connection && state->has_said_goodbye);
  const bool has_job = std::any_of(known_jobs.begin(), known_jobs.end(), [this](const auto& known) {
    return known.second == *loading->client;
  });
  if (loading->is_prepared && has_job) return Time::max();
  if (is_gone) return Time{};
  if (state->connection) return Time::max();
  return state->away_since + (loading->is_prepared ? kPreparedAway : options.client_grace);
}

Shard::Impl::Loading& Shard::Impl::loading_of(std::uint64_t staging) {
  if (!loading || loading->staging != staging)
    throw Closed(
        "nothing is there to be loaded: the client that wanted it was lost meanwhile, or has given "
        "it up");
  return *loading;
}

void Shard::load_piece(std::span<const std::byte> piece, std::uint64_t staging) {
  impl_->loading_of(staging);
  wire::Reader in(piece);
  while (in.left() > 0) {
    const auto kind = in.get<std::uint64_t>();
    const auto table = in.get<std::uint64_t>();
    const auto bytes = in.get<std::uint64_t>();
    if (bytes > in.left())
      throw ProtocolError(str("checkpoint: a record of ", bytes, " bytes in ", in.left()));
    impl_->load_record(kind, table, in.take(static_cast<std::size_t>(bytes)));
  }
}

// Steps of a table may go back between two files of a shard, when somebody has written its state.
void Shard::Impl::begin_source(std::uint32_t shard) {
  if (loading->source == shard) return;
  loading->source = shard;
  for (auto& [id, table] : loading->store.all()) {
    loading->least_steps[id] = table.steps;
    if (table.dense) table.dense->begin_next_load();
  }
}

void Shard::Impl::load_record(std::uint64_t kind, std::uint64_t id,
                              std::span<const std::byte> payload) {
  wire::Reader in(payload);
  switch (static_cast<RecordKind>(kind)) {
    case RecordKind::kLayout: {
      const auto shard = in.get<std::uint32_t>();
      const auto shards = in.get<std::uint32_t>();
      loading->is_same_layout = shard == options.shard && shards == options.shards;
      begin_source(shard);
      in.get<std::uint64_t>();  // The lineage of who wrote it.
      // Files of before have no tick here.
      if (in.left() > 0)
        loading->store.note_tick(static_cast<std::uint32_t>(in.get<std::uint64_t>()));
      if (loading->is_same_layout) loading->domains.clear();
      return;
    }
    case RecordKind::kClients:
      if (!loading->is_same_layout) return;
      loading->clients = {};
      loading->clients.restore(in);
      return;
    case RecordKind::kDomain:
      if (!loading->is_same_layout) return;
      loading->domains.insert_or_assign(id, Domain::restore(in));
      return;
    case RecordKind::kContribution: {
      if (!loading->is_same_layout) return;
      const auto domain = loading->domains.find(id);
      if (domain == loading->domains.end())
        throw ProtocolError(str("checkpoint: a contribution to domain ", id, ", which it lacks"));
      domain->second.restore_contribution(in);
      return;
    }
    case RecordKind::kTable: {
      Table before;
      for (std::uint64_t* count : {&before.pushes, &before.steps, &before.rows_pushed,
                                   &before.rows_pulled, &before.refused, &before.not_admitted})
        *count = in.get<std::uint64_t>();
      const SavedSpec saved = get_saved_spec(in);
      Table& table = loading->store.make_or_refuse(saved.made);
      if (saved.order >= table.rule_order) loading->store.set_rule(table, saved.rule, saved.order);
      table.pushes = std::max(table.pushes, before.pushes);
      table.steps = std::max(loading->least_steps[table_id(saved.made.name)], before.steps);
      if (!loading->is_same_layout) return;
      table.rows_pushed = before.rows_pushed;
      table.rows_pulled = before.rows_pulled;
      table.refused = before.refused;
      table.not_admitted = before.not_admitted;
      return;
    }
    case RecordKind::kPiece: {
      Table& table = loading->store.require(id);
      Ours ours{options.shard, options.shards};
      if (table.sparse)
        table.sparse->load_piece(payload, loading->is_same_layout ? nullptr : &is_ours, &ours);
      else
        table.dense->load_piece(payload);
      return;
    }
  }
  throw ProtocolError(str("checkpoint: unknown record kind ", kind));
}

// Rules go back, and their numbers go on: who makes a table before other shards have loaded theirs
// takes the last one for what all should have.
void Shard::Impl::number_rules_of(Store& loaded) {
  for (auto& [id, table] : loaded.all()) {
    const auto before = store.all().find(id);
    if (before != store.all().end() && before->second.rule_order > table.rule_order)
      table.rule_order = {before->second.rule_order.number + 1, 0};
  }
}

void Shard::commit_load(bool is_recovery, std::uint64_t staging) {
  Impl::Loading loaded = std::move(impl_->loading_of(staging));
  impl_->loading.reset();
  impl_->end_snapshot();
  impl_->number_rules_of(loaded.store);
  impl_->store = std::move(loaded.store);
  if (!is_recovery) {
    impl_->clients.add_foreign(std::move(loaded.clients));
    // What belonged together before is replaced: no cut from now on waits for the rest of it.
    for (auto& [client, state] : impl_->clients.all()) state.tail.clear();
    impl_->void_freeze();
    // Meant for the tables as they were.
    for (auto& [id, domain] : impl_->domains) domain.drop_contributions();
    impl_->lineage = mix_id(impl_->lineage + 1);
    // Told to the journal: what it has from before leads to another state than this one.
    wire::PsHeader mark;
    mark.type = wire::PsType::kLoad;
    impl_->journal->append(mark, {}, 0, 0);
    return;
  }
  // A worker whose process was a new one that had done nothing is not among the saved clients; who
  // gives it up should it not come back?
  for (const auto& [id, domain] : loaded.domains)
    for (const std::uint32_t worker : domain.here()) loaded.clients.expect(worker);
  impl_->clients.add(std::move(loaded.clients));
  // The lineage stays this process's own: of a log that was cut off by a power failure the end may
  // be in a checkpoint, and no other may build on that one.
  for (auto& [id, domain] : loaded.domains) impl_->domains.insert_or_assign(id, std::move(domain));
}

}  // namespace gradring::ps
