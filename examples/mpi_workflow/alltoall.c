/* The latency of MPI_Alltoall over message size, printed as the OSU micro-benchmarks print it.
 *
 *     mpicc -O2 -o osu_alltoall alltoall.c
 *     osu_alltoall [-m LARGEST] [-i ITERATIONS] [-x WARMUP]
 *
 * For each size, 1 byte to LARGEST for each pair of ranks, the average over the iterations and ranks in microseconds.
 */
#include <getopt.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void usage(const char *name, int status)
{
    printf("usage: %s [-m BYTES, --message-size BYTES] [-i N, --iterations N] [-x N, --warmup N]\n"
           "  -m  largest message for each pair of ranks, default 1048576; also MIN:MAX\n"
           "  -i  measured calls for each size, default 100\n"
           "  -x  calls before them that are not measured, default 10\n",
           name);
    exit(status);
}

int main(int argc, char **argv)
{
    static const struct option options[] = {{"message-size", required_argument, NULL, 'm'},
                                            {"iterations", required_argument, NULL, 'i'},
                                            {"warmup", required_argument, NULL, 'x'},
                                            {"help", no_argument, NULL, 'h'},
                                            {NULL, 0, NULL, 0}};
    long smallest = 1, largest = 1048576, iterations = 100, warmup = 10;
    int rank, ranks, option;
    for (char *colon; (option = getopt_long(argc, argv, "m:i:x:h", options, NULL)) != -1;) {
        if (option == 'm') {
            colon = strchr(optarg, ':');
            if (colon != NULL) smallest = atol(optarg);
            largest = atol(colon != NULL ? colon + 1 : optarg);
        } else if (option == 'i') {
            iterations = atol(optarg);
        } else if (option == 'x') {
            warmup = atol(optarg);
        } else {
            usage(argv[0], option == 'h' ? 0 : 2);
        }
    }
    if (smallest < 1 || largest < smallest || iterations < 1 || warmup < 0) usage(argv[0], 2);

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    char *send = malloc((size_t)largest * (size_t)ranks), *receive = malloc((size_t)largest * (size_t)ranks);
    if (send == NULL || receive == NULL) {
        fprintf(stderr, "rank %d: no memory for %ld bytes to each of %d ranks\n", rank, largest, ranks);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memset(send, rank, (size_t)largest * (size_t)ranks);
    memset(receive, 255, (size_t)largest * (size_t)ranks);
    if (rank == 0) printf("# MPI All-to-All Personalized Exchange Latency Test, %d ranks\n# Size       Avg Latency(us)\n", ranks);
    for (long size = smallest; size <= largest; size *= 2) {
        double begin = 0, own, sum;
        MPI_Barrier(MPI_COMM_WORLD);
        for (long i = -warmup; i < iterations; ++i) {
            if (i == 0) begin = MPI_Wtime();
            MPI_Alltoall(send, (int)size, MPI_CHAR, receive, (int)size, MPI_CHAR, MPI_COMM_WORLD);
        }
        own = (MPI_Wtime() - begin) * 1e6 / (double)iterations;
        for (int from = 0; from < ranks; ++from) {
            if (receive[(size_t)from * (size_t)size] != (char)from) {
                fprintf(stderr, "rank %d: rank %d's data of %ld bytes is wrong\n", rank, from, size);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
        }
        MPI_Reduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0) printf("%-10ld%*.2f\n", size, 18, sum / ranks);
        fflush(stdout);
    }
    free(send);
    free(receive);
    MPI_Finalize();
    return 0;
}
