package org.apache.hadoop.hdfs.server.blockmanagement;

import cairn.hdfs.PlanTable;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.StorageType;
import org.apache.hadoop.hdfs.AddBlockFlag;
import org.apache.hadoop.hdfs.protocol.BlockStoragePolicy;
import org.apache.hadoop.hdfs.protocol.DatanodeInfo;
import org.apache.hadoop.net.NetworkTopology;
import org.apache.hadoop.net.Node;

/**
 * Puts a new block on the DataNodes that the plan table names for its file, in that order, which is the pipeline's. When
 * there is no plan, or a named node cannot serve (unknown, dead, stale, full, decommissioning, excluded by the client),
 * HDFS's own choice stands. Repairs never follow the plan: it may name the node that was just lost.
 */
public final class PlannedPlacementPolicy extends BlockPlacementPolicyDefault {
    /** False: HDFS moves replicas that a plan put into one rack. */
    public static final String ANY_RACKS_KEY = "cairn.placement.any-racks";

    private PlanTable table = PlanTable.SHARED;
    private FSClusterStats clusterStats;
    private boolean anyRacks = true;

    @Override
    public void initialize(Configuration conf, FSClusterStats stats, NetworkTopology map, Host2NodesMap hosts) {
        super.initialize(conf, stats, map, hosts);
        clusterStats = stats;
        anyRacks = conf.getBoolean(ANY_RACKS_KEY, true);
    }

    void setTable(PlanTable other) {
        table = other;
    }

    /** New blocks of a file that is being written. */
    @Override
    DatanodeStorageInfo[] chooseTarget(String path, int replicas, Node writer, Set<Node> excluded, long blockSize,
            List<DatanodeDescriptor> favored, BlockStoragePolicy storagePolicy, EnumSet<AddBlockFlag> flags) {
        DatanodeStorageInfo[] planned = planned(path, replicas, excluded, blockSize, storagePolicy);
        return planned != null
                ? planned
                : super.chooseTarget(path, replicas, writer, excluded, blockSize, favored, storagePolicy, flags);
    }

    /** WebHDFS's redirect (one node, nothing chosen, no flags) takes the chain's first; repairs are HDFS's own. */
    @Override
    public DatanodeStorageInfo[] chooseTarget(String path, int replicas, Node writer, List<DatanodeStorageInfo> chosen,
            boolean returnChosen, Set<Node> excluded, long blockSize, BlockStoragePolicy storagePolicy,
            EnumSet<AddBlockFlag> flags) {
        if (replicas == 1 && chosen.isEmpty() && !returnChosen && flags == null) {
            DatanodeStorageInfo[] planned = planned(path, replicas, excluded, blockSize, storagePolicy);
            if (planned != null) {
                return planned;
            }
        }
        return super.chooseTarget(path, replicas, writer, chosen, returnChosen, excluded, blockSize, storagePolicy, flags);
    }

    private DatanodeStorageInfo[] planned(
            String path, int replicas, Set<Node> excluded, long blockSize, BlockStoragePolicy storagePolicy) {
        PlanTable.Plan plan = table.find(path);
        if (plan == null) {
            return null;
        }
        List<DatanodeStorageInfo> targets = new ArrayList<>(replicas);
        String problem = plan.hosts().size() < replicas ? "it is shorter than " + replicas + " replicas" : null;
        List<StorageType> types = storagePolicy.chooseStorageTypes((short) replicas);
        for (int place = 0; place < replicas && problem == null; place++) {
            problem = take(plan.hosts().get(place), types.get(place), excluded, blockSize, targets);
        }
        table.count(plan, problem == null);
        if (problem != null) {
            LOG.warn("Plan {} for {} is not followed: {}", plan.hosts(), path, problem);
            return null;
        }
        LOG.info("Plan {} for {} is followed, {} of its nodes", plan.hosts(), path, replicas);
        return targets.toArray(DatanodeStorageInfo.EMPTY_ARRAY);
    }

    /** Adds a storage of the named node to the targets, or says why that cannot be. */
    private String take(
            String name, StorageType type, Set<Node> excluded, long blockSize, List<DatanodeStorageInfo> targets) {
        DatanodeDescriptor node = node(name);
        if (node == null || !clusterMap.contains(node)) {
            return name + " is no DataNode here";
        }
        if (!node.isAlive()) {
            return name + " is dead";
        }
        if (excluded != null && excluded.contains(node)) {
            return name + " is excluded";
        }
        if (targets.stream().anyMatch(storage -> storage.getDatanodeDescriptor().equals(node))) {
            return name + " is named twice";
        }
        boolean avoidStale = clusterStats != null && clusterStats.isAvoidingStaleDataNodesForWrite();
        if (!isGoodDatanode(node, Integer.MAX_VALUE, false, targets, avoidStale)) {
            return name + " is stale, or leaving service";
        }
        return chooseStorage4Block(node, blockSize, targets, type) == null ? name + " is full" : null;
    }

    private DatanodeDescriptor node(String name) {
        int colon = name.lastIndexOf(':');
        if (colon > 0) {
            return host2datanodeMap.getDatanodeByXferAddr(name.substring(0, colon), Integer.parseInt(name.substring(colon + 1)));
        }
        DatanodeDescriptor node = host2datanodeMap.getDatanodeByHost(name);
        return node != null ? node : host2datanodeMap.getDataNodeByHostName(name);
    }

    @Override
    public BlockPlacementStatus verifyBlockPlacement(DatanodeInfo[] locations, int replicas) {
        return anyRacks ? new BlockPlacementStatusDefault(1, 1, 1) : super.verifyBlockPlacement(locations, replicas);
    }
}
