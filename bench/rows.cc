// How fast one shard's tables are, on one thread: rows read and updated per second of processor
// time, the client's merging of equal ids, and snapshots. Batches of 65,536 ids follow Zipf's law
// (exponent 1.05) over all rows of the table, scattered by a hash; rows were made in another order
// than their rank. Answers are checked. Run: bench_rows [millions of rows [rounds [dim]]]; by
// default 10, 15 and 64, which takes 6 GB of memory.
#include <time.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "ps/tables/initial.h"
#include "ps/tables/merge.h"
#include "ps/tables/partition.h"
#include "ps/tables/sparse_table.h"

namespace gradring {
namespace {

using Ids = std::vector<std::uint64_t>;
using ps::SparseTable;

constexpr std::size_t kBatch = 65536;
constexpr std::size_t kBatches = 16;
constexpr double kExponent = 1.05;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "bench_rows: wrong answer: %s\n", what);
  std::exit(1);
}

// Of the processor, not of the wall: whatever else the machine does counts less.
double seconds_now() {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double seconds_of(const std::function<void()>& work) {
  const double start = seconds_now();
  work();
  return seconds_now() - start;
}

struct Timing {
  double median;
  double best;
};

Timing time_rounds(int rounds, const std::function<void(std::size_t)>& work) {
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round)
    seconds.push_back(seconds_of([&] { work(static_cast<std::size_t>(round) % kBatches); }));
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds[0]};
}

void print_rate(const char* what, std::size_t rows, const Timing& timing) {
  std::printf("%-34s %7.1f Mrows/s (best %.1f), %.3f ms\n", what,
              static_cast<double>(rows) / timing.median / 1e6,
              static_cast<double>(rows) / timing.best / 1e6, timing.median * 1e3);
  std::fflush(stdout);
}

std::uint64_t id_of_rank(std::uint64_t rank) {
  return ps::mix_id(rank + 1);
}

// Batches of ids, by inversion of the distribution's sums.
std::vector<Ids> zipf_batches(std::size_t rows) {
  std::vector<double> sums(rows);
  double sum = 0;
  for (std::size_t rank = 0; rank < rows; ++rank)
    sums[rank] = sum += std::pow(static_cast<double>(rank + 1), -kExponent);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> uniform(0, sum);
  std::vector<Ids> batches(kBatches, Ids(kBatch));
  for (Ids& batch : batches) {
    for (std::uint64_t& id : batch) {
      const auto found = std::upper_bound(sums.begin(), sums.end() - 1, uniform(random));
      id = id_of_rank(static_cast<std::uint64_t>(found - sums.begin()));
    }
  }
  return batches;
}

ps::TableSpec spec_of(kernels::RuleKind kind, std::uint32_t dim) {
  ps::TableSpec spec;
  spec.name = "rows";
  spec.dim = dim;
  spec.rule.kind = kind;
  spec.rule.lr = 0.01;
  spec.init = {ps::InitKind::kUniform, -0.1F, 0.1F};
  return spec;
}

// Every rank's row, at its initial value, in an order that has nothing to do with ranks.
std::unique_ptr<SparseTable> filled_table(const ps::TableSpec& spec, std::size_t rows) {
  auto table = std::make_unique<SparseTable>(spec);
  constexpr std::uint64_t kStride = 2'654'435'761;  // A prime: every rank comes once.
  Ids ids;
  std::vector<float> zeros;
  const double seconds = seconds_of([&] {
    for (std::size_t first = 0; first < rows; first += kBatch) {
      ids.clear();
      for (std::size_t i = first; i < std::min(rows, first + kBatch); ++i)
        ids.push_back(id_of_rank(i * kStride % rows));
      zeros.assign(ids.size() * spec.dim, 0.0F);
      table->apply(ids, zeros.data(), 0, 1);
    }
  });
  if (table->size() != rows) fail("rows made");
  std::printf("%s: %zu rows of %zu floats, %.2f GB, made at %.1f Mrows/s\n",
              std::string(kernels::name(spec.rule.kind)).c_str(), rows, table->row_floats(),
              static_cast<double>(table->bytes()) / 1e9, static_cast<double>(rows) / seconds / 1e6);
  return table;
}

void require_initial(const ps::TableSpec& spec, const Ids& ids, const std::vector<float>& rows) {
  const ps::Draws draws(spec.seed, ps::table_id(spec.name));
  std::vector<float> start(spec.dim);
  for (std::size_t i = 0; i < ids.size(); i += 7) {
    draws.fill_row(spec.init, ids[i], spec.dim, start.data());
    if (std::memcmp(start.data(), &rows[i * spec.dim], spec.dim * sizeof(float)) != 0)
      fail("rows read");
  }
}

void bench_gather(const SparseTable& table, const std::vector<Ids>& batches, const char* what,
                  int rounds) {
  std::vector<float> out(kBatch * table.spec().dim);
  std::size_t rows = 0;
  for (const Ids& ids : batches) rows += ids.size();
  for (const Ids& ids : batches) {
    table.gather(ids, out.data());
    require_initial(table.spec(), ids, out);
  }
  const Timing timing =
      time_rounds(rounds, [&](std::size_t batch) { table.gather(batches[batch], out.data()); });
  print_rate(what, rows / batches.size(), timing);
}

// In parts of 512 KiB, as pushes come. Gradients are given anew for each: apply() may write to
// them.
void bench_apply(SparseTable& table, const std::vector<Ids>& batches, const char* what,
                 int rounds) {
  const std::size_t dim = table.spec().dim;
  const std::size_t part = std::max<std::size_t>(1, (512u << 10) / (dim * sizeof(float)));
  std::vector<float> gradients(part * dim);
  std::vector<double> seconds;
  std::size_t rows = 0;
  for (const Ids& ids : batches) rows += ids.size();
  for (int round = 0; round < rounds; ++round) {
    const std::span<const std::uint64_t> ids = batches[static_cast<std::size_t>(round) % kBatches];
    std::uint32_t before = 0;
    std::uint32_t after = 0;
    table.versions(ids.first(1), &before);
    double taken = 0;
    for (std::size_t first = 0; first < ids.size(); first += part) {
      const auto ids_of_part = ids.subspan(first, std::min(part, ids.size() - first));
      std::fill(gradients.begin(), gradients.end(), 1e-6F);
      taken += seconds_of([&] {
        if (table.apply(ids_of_part, gradients.data(), 1, 1).rows != ids_of_part.size())
          fail("rows updated");
      });
    }
    seconds.push_back(taken);
    table.versions(ids.first(1), &after);
    if (after - before != std::count(ids.begin(), ids.end(), ids[0])) fail("versions");
  }
  std::sort(seconds.begin(), seconds.end());
  print_rate(what, rows / batches.size(), {seconds[seconds.size() / 2], seconds[0]});
}

void bench_merge(const std::vector<Ids>& batches, std::size_t dim, int rounds) {
  std::size_t distinct_rows = 0;
  for (const std::uint32_t shards : {1u, 4u}) {
    const Timing timing = time_rounds(rounds, [&](std::size_t batch) {
      const ps::Distinct distinct(batches[batch], shards);
      distinct_rows = distinct.ids().size();
      if (distinct.end_of(shards - 1) != distinct_rows) fail("distinct ids");
    });
    std::printf("distinct ids, %u shard%s                %.3f ms (best %.3f); %zu of %zu\n", shards,
                shards == 1 ? " " : "s", timing.median * 1e3, timing.best * 1e3, distinct_rows,
                kBatch);
  }
  const ps::Distinct distinct(batches[0], 1);
  const std::size_t rows = distinct.ids().size();
  std::vector<float> gradients(kBatch * dim, 1.0F);
  std::vector<float> sums(rows * dim);
  print_rate("merge gradients", kBatch, time_rounds(rounds, [&](std::size_t) {
               distinct.sum(0, rows, gradients.data(), dim, sums.data());
             }));
  double total = 0;
  for (std::size_t row = 0; row < rows; ++row) total += double{sums[row * dim + dim - 1]};
  if (total != double{kBatch}) fail("merged gradients");
  print_rate("fan out rows", kBatch, time_rounds(rounds, [&](std::size_t) {
               distinct.fan_out(0, rows, sums.data(), dim, gradients.data());
             }));
  for (std::size_t row = 0; row < rows; ++row) {
    for (const std::uint32_t position : distinct.positions(row)) {
      if (gradients[position * dim] != sums[row * dim]) fail("rows fanned out");
    }
  }
}

void bench_snapshot(SparseTable& table, ps::SnapshotBytes::Reader reader, const char* what) {
  ps::SnapshotBytes piece(reader);
  double bytes = 0;
  const double seconds = seconds_of([&] {
    table.begin_snapshot(0);
    while (table.next_snapshot_piece(std::size_t{8} << 20, piece)) {
      bytes += static_cast<double>(piece.size());
      piece.cut_to(0);
    }
    table.end_snapshot();
  });
  const double least = static_cast<double>(table.size() * (40 + table.row_floats() * 4));
  if (bytes < least || bytes > least * 1.01 + 1e6) fail("a snapshot's size");
  std::printf("%-34s %7.2f GB/s, %.2f GB\n", what, bytes / seconds / 1e9, bytes / 1e9);
  std::fflush(stdout);
}

void bench(std::size_t rows, int rounds, std::uint32_t dim) {
  const std::vector<Ids> batches = zipf_batches(rows);
  std::vector<Ids> distinct;
  for (const Ids& batch : batches) {
    const ps::Distinct each(batch, 1);
    distinct.emplace_back(each.ids().begin(), each.ids().end());
  }
  bench_merge(batches, dim, rounds);
  for (const kernels::RuleKind kind : {kernels::RuleKind::kSgd, kernels::RuleKind::kAdagrad}) {
    const auto table = filled_table(spec_of(kind, dim), rows);
    bench_gather(*table, batches, "  read 65,536 rows", rounds);
    bench_gather(*table, distinct, "  read the distinct ones", rounds);
    bench_apply(*table, batches, "  update 65,536 rows", rounds);
    bench_apply(*table, distinct, "  update the distinct ones", rounds);
    bench_snapshot(*table, ps::SnapshotBytes::Reader::kProcessor, "snapshot");
    bench_snapshot(*table, ps::SnapshotBytes::Reader::kDisk, "snapshot past the caches, checked");
  }
}

}  // namespace
}  // namespace gradring

int main(int argc, char** argv) {
  const int millions = argc > 1 ? std::atoi(argv[1]) : 10;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  const int dim = argc > 3 ? std::atoi(argv[3]) : 64;
  if (millions < 1 || rounds < 1 || dim < 1) {
    std::fprintf(stderr, "usage: bench_rows [millions of rows [rounds [dim]]]\n");
    return 2;
  }
  gradring::bench(static_cast<std::size_t>(millions) * 1'000'000, rounds,
                  static_cast<std::uint32_t>(dim));
  return 0;
}
