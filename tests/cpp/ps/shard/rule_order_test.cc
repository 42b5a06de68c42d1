// Changes of a table's rule by several clients: every shard ends with the same settings, whatever
// order they come in.
#include <doctest/doctest.h>

#include "ps/client/rule_change.h"
#include "support/ps/shard_rig.h"

namespace gradring::testing::rule_order_test {
namespace {

ps::TableSpec table_of(double lr) {
  ps::TableSpec spec = sum_table("t", 1);
  spec.rule = {.kind = kernels::RuleKind::kSgd, .lr = lr};
  return spec;
}

Request changed(double lr, std::uint64_t number) {
  return set_rule("t", table_of(lr).rule, number);
}

// The learning rate in force, as its stats have it.
std::string rate_of(ShardRig& rig) {
  const std::string stats = rig.shard().stats();
  const std::size_t begin = stats.find("\"lr\":") + 5;
  return stats.substr(begin, stats.find(',', begin) - begin);
}

// What the answer to a change says: which one is in force, and whether it has other settings.
std::pair<std::uint64_t, bool> told(const ps::Frame& answer) {
  wire::Reader in(answer.payload);
  const ps::Outcome outcome = ps::get_outcome(in);
  return {outcome.workers, outcome.refused > 0};
}

using Told = std::pair<std::uint64_t, bool>;

TEST_CASE("of several changes of a rule the last one by number and client is in force") {
  for (const bool is_turned : {false, true}) {
    CAPTURE(is_turned);
    ShardRig rig;
    Guest a = rig.enter(0);
    Guest b = rig.enter(1);
    rig.ask(a, make_table(table_of(1)));
    Guest& first = is_turned ? b : a;
    Guest& second = is_turned ? a : b;
    CHECK(told(rig.ask(first, changed(is_turned ? 4 : 2, 1))) == Told{1, false});
    const ps::Frame frame = rig.frame_of(second, changed(is_turned ? 2 : 4, 1));
    for (int time = 0; time < 2; ++time)  // Asked again, it is told the same.
      CHECK(told(rig.send_frame(second, frame)[0].frame) == Told{1, is_turned});
    CHECK(rate_of(rig) == "4");
    // Whoever wants what is there has it, also with a number that is too small.
    CHECK(told(rig.ask(a, changed(8, 7))) == Told{7, false});
    CHECK(told(rig.ask(b, changed(8, 3))) == Told{7, false});
    CHECK(told(rig.ask(b, changed(4, 3))) == Told{7, true});
    CHECK(rate_of(rig) == "8");
    // Without a number it holds from when it comes; the next one is compared as before.
    CHECK(told(rig.ask(b, changed(16, 0))) == Told{7, false});
    CHECK(rate_of(rig) == "16");
    CHECK(told(rig.ask(b, changed(2, 6))) == Told{7, true});
    CHECK(rate_of(rig) == "16");
  }
}

TEST_CASE("logs and checkpoints know which change of a rule is in force") {
  ShardRig rig;
  Guest guest = rig.enter(5);
  rig.ask(guest, make_table(table_of(1)));
  rig.ask(guest, changed(2, 4));
  rig.ask(guest, changed(1, 6));  // As it was made, and yet a later change.
  ShardRig replayed;
  replayed.replay(rig.journal.records);
  ShardRig recovered;
  recovered.load({rig.snapshot()}, true);
  ShardRig loaded;
  loaded.load({rig.snapshot()}, false);
  for (ShardRig* each : {&replayed, &recovered, &loaded}) {
    Guest other = each->enter(6);
    CHECK(told(each->ask(other, changed(8, 5))) == Told{6, true});
    CHECK(rate_of(*each) == "1");
    CHECK(told(each->ask(other, changed(8, 6))) == Told{6, false});
    CHECK(rate_of(*each) == "8");
  }
}

TEST_CASE("shards that load files of others take the last change that any of them has") {
  std::vector<std::vector<std::byte>> files;
  for (std::uint32_t shard = 0; shard < 2; ++shard) {
    ShardRig rig(shard, 2);
    Guest guest = rig.enter(0);
    rig.ask(guest, make_table(table_of(1)));
    rig.ask(guest, changed(2, 1));
    if (shard == 0) rig.ask(guest, changed(4, 2));  // Who made it died before the rest.
    files.push_back(rig.snapshot());
  }
  for (const std::uint32_t shards : {1u, 3u})
    for (std::uint32_t shard = 0; shard < shards; ++shard) {
      ShardRig rig(shard, shards);
      rig.load(files, false);
      CHECK(rate_of(rig) == "4");
    }
}

// Two shards, and clients whose calls reach them in any order.
struct Cluster {
  ShardRig rigs[2] = {ShardRig(0, 2), ShardRig(1, 2)};
  struct Client {
    std::shared_ptr<ps::RemoteTable> table = std::make_shared<ps::RemoteTable>(table_of(1), 2);
    Guest guests[2];
    ps::RuleChange change = {};
    std::shared_ptr<ps::PlainCall> call = nullptr;
    int calls = 0;
  };

  Client enter(std::uint32_t number) {
    Client client;
    for (int shard = 0; shard < 2; ++shard) {
      client.guests[shard] = rigs[shard].enter(number);
      rigs[shard].ask(client.guests[shard], make_table(table_of(1)));
    }
    return client;
  }
  static void begin(Client& client, double lr) {
    client.change = {};
    client.change.add(client.table, table_of(lr).rule);
    client.call = client.change.begin();
    client.calls = 1;
  }
  void deliver(Client& client, std::size_t shard) {
    const ps::Part& part = client.call->parts()[shard];
    const ps::Frame answer = rigs[shard].ask(client.guests[shard], {part.header, part.head});
    client.call->take(shard, answer.header, answer.payload);
  }
  static void go_on(Client& client) {
    client.call = client.change.go_on(*client.call);
    if (client.call) ++client.calls;
  }
  // As somebody who comes: its call is what it has to repeat then, if there is anything.
  void make_table_again(Client& client) {
    const Request request = make_table(table_of(1));
    ps::PlainCall made("making table 't'");
    made.add_to_all(2, request.header, request.rest);
    for (std::size_t shard = 0; shard < 2; ++shard) {
      const ps::Frame answer = rigs[shard].ask(client.guests[shard], request);
      made.take(shard, answer.header, answer.payload);
    }
    client.call = ps::repeat_last_change(*client.table, made.answers());
  }
  void deliver_to_both(Client& client) {
    for (std::size_t shard = 0; shard < 2; ++shard) deliver(client, shard);
  }
  void finish(Client& client) {
    for (; client.call; go_on(client))
      for (std::size_t shard = 0; shard < 2; ++shard) deliver(client, shard);
  }
};

TEST_CASE("changes that reach shards in different orders leave them with the same rule") {
  for (const bool has_larger_first : {false, true}) {
    CAPTURE(has_larger_first);
    Cluster cluster;
    Cluster::Client a = cluster.enter(has_larger_first ? 1 : 0);
    Cluster::Client b = cluster.enter(has_larger_first ? 0 : 1);
    Cluster::begin(a, 2);
    Cluster::begin(b, 4);
    cluster.deliver(a, 0);
    cluster.deliver(b, 0);
    cluster.deliver(b, 1);
    cluster.deliver(a, 1);
    Cluster::go_on(a);
    Cluster::go_on(b);
    cluster.finish(a);
    cluster.finish(b);
    CHECK(rate_of(cluster.rigs[0]) == rate_of(cluster.rigs[1]));
    CHECK(rate_of(cluster.rigs[0]) != "1");
  }
}

TEST_CASE("a change that comes after another is done is in force, in two calls at the most") {
  Cluster cluster;
  Cluster::Client often = cluster.enter(9);
  Cluster::Client once = cluster.enter(0);
  for (const double lr : {2.0, 3.0, 5.0}) {
    Cluster::begin(often, lr);
    cluster.finish(often);
    CHECK(often.calls == 1);  // It knows where it is.
  }
  Cluster::begin(once, 7);
  cluster.finish(once);
  CHECK(once.calls == 2);
  Cluster::begin(often, 7);  // What is there already costs nothing.
  cluster.finish(often);
  CHECK(often.calls == 1);
  CHECK(rate_of(cluster.rigs[0]) == "7");
  CHECK(rate_of(cluster.rigs[1]) == "7");
}

TEST_CASE("what a client that died has left on one shard is made good by the next change") {
  Cluster cluster;
  Cluster::Client dead = cluster.enter(9);
  Cluster::Client next = cluster.enter(0);
  Cluster::begin(dead, 2);
  cluster.deliver(dead, 1);
  Cluster::begin(next, 4);
  cluster.finish(next);
  CHECK(rate_of(cluster.rigs[0]) == "4");
  CHECK(rate_of(cluster.rigs[1]) == "4");
}

TEST_CASE("who makes a table has all shards go on with the last change that one of them has") {
  Cluster cluster;
  Cluster::Client dead = cluster.enter(9);
  Cluster::Client next = cluster.enter(0);
  cluster.make_table_again(next);
  CHECK(next.call == nullptr);
  Cluster::begin(dead, 2);
  cluster.deliver(dead, 1);
  cluster.make_table_again(next);
  REQUIRE(next.call != nullptr);
  cluster.deliver_to_both(next);
  ShardRig replayed;
  replayed.replay(cluster.rigs[0].journal.records);
  for (ShardRig* each : {&cluster.rigs[0], &cluster.rigs[1], &replayed})
    CHECK(rate_of(*each) == "2");
  cluster.make_table_again(next);
  CHECK(next.call == nullptr);
  Cluster::begin(next, 4);  // It has heard of the number.
  cluster.finish(next);
  CHECK(next.calls == 1);
}

TEST_CASE("a change that somebody repeats while its own client goes on beats no later one") {
  Cluster cluster;
  Cluster::Client living = cluster.enter(3);
  Cluster::Client next = cluster.enter(9);
  Cluster::begin(living, 2);
  cluster.deliver(living, 0);
  cluster.make_table_again(next);
  REQUIRE(next.call != nullptr);
  cluster.deliver(living, 1);
  Cluster::go_on(living);
  Cluster::begin(living, 4);
  cluster.deliver_to_both(living);
  cluster.deliver_to_both(next);
  for (ShardRig& each : cluster.rigs) CHECK(rate_of(each) == "4");
}

}  // namespace
}  // namespace gradring::testing::rule_order_test
