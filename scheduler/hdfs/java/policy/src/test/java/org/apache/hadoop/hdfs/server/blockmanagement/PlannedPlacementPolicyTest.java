package org.apache.hadoop.hdfs.server.blockmanagement;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import cairn.hdfs.PlanTable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.StorageType;
import org.apache.hadoop.hdfs.AddBlockFlag;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.net.DFSNetworkTopology;
import org.apache.hadoop.hdfs.protocol.BlockStoragePolicy;
import org.apache.hadoop.hdfs.protocol.DatanodeID;
import org.apache.hadoop.hdfs.protocol.DatanodeInfo;
import org.apache.hadoop.hdfs.server.protocol.DatanodeStorage;
import org.apache.hadoop.hdfs.server.protocol.StorageReport;
import org.apache.hadoop.hdfs.server.protocol.VolumeFailureSummary;
import org.apache.hadoop.net.NetworkTopology;
import org.apache.hadoop.net.Node;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** The policy against HDFS's own classes: six DataNodes in two racks. */
class PlannedPlacementPolicyTest {
    private static final long BLOCK = 1 << 20;
    private static final List<String> PLAN = List.of("10.0.0.5", "host1", "10.0.0.2:9866");
    private static final String FILE = "/c/x/chunk-0";

    private final PlanTable table = new PlanTable(100, () -> 0);
    private final PlannedPlacementPolicy policy = new PlannedPlacementPolicy();
    private final Map<String, DatanodeDescriptor> nodes = new LinkedHashMap<>();
    private NetworkTopology map;

    @BeforeEach
    void sixNodes() {
        Configuration conf = new HdfsConfiguration();
        conf.setBoolean("dfs.namenode.redundancy.considerLoad", false);
        map = DFSNetworkTopology.getInstance(conf);
        Host2NodesMap hosts = new Host2NodesMap();
        for (int number = 1; number <= 6; number++) {
            DatanodeID id = new DatanodeID("10.0.0." + number, "host" + number, "uuid" + number, 9866, 9864, 9865, 9867);
            DatanodeDescriptor node = new DatanodeDescriptor(id, number <= 3 ? "/rack1" : "/rack2");
            DatanodeStorage storage = new DatanodeStorage("s" + number, DatanodeStorage.State.NORMAL, StorageType.DISK);
            node.updateStorage(storage);
            space(node, 100 * BLOCK);
            node.setAlive(true);
            map.add(node);
            hosts.add(node);
            nodes.put("host" + number, node);
        }
        policy.initialize(conf, null, map, hosts);
        policy.setTable(table);
        table.put("/c/x", PLAN, 1000);
    }

    private static void space(DatanodeDescriptor node, long bytes) {
        DatanodeStorage storage = node.getStorageInfos().length > 0
                ? new DatanodeStorage(node.getStorageInfos()[0].getStorageID())
                : null;
        StorageReport[] reports = {new StorageReport(storage, false, 100 * BLOCK, 0, bytes, 0, 0)};
        node.updateHeartbeat(reports, 0, 0, 0, 0, (VolumeFailureSummary) null);
    }

    private static BlockStoragePolicy disks() {
        StorageType[] none = {};
        return new BlockStoragePolicy((byte) 7, "HOT", new StorageType[] {StorageType.DISK}, none, none);
    }

    private List<String> newBlock(String path, int replicas, String... excluded) {
        return names(policy.chooseTarget(
                path, replicas, null, excludedSet(excluded), BLOCK, null, disks(), EnumSet.noneOf(AddBlockFlag.class)));
    }

    private List<String> redirect(String path, String... excluded) {
        return names(policy.chooseTarget(
                path, 1, null, new ArrayList<>(), false, excludedSet(excluded), BLOCK, disks(), null));
    }

    private Set<Node> excludedSet(String... names) {
        return Arrays.stream(names).map(nodes::get).collect(Collectors.toCollection(HashSet::new));
    }

    private static List<String> names(DatanodeStorageInfo[] targets) {
        return Arrays.stream(targets).map(target -> target.getDatanodeDescriptor().getHostName()).toList();
    }

    private long used() {
        return table.counts().used().get();
    }

    private long refused() {
        return table.counts().refused().get();
    }

    private void assertOwnChoice(List<String> chosen, int replicas) {
        assertEquals(replicas, new HashSet<>(chosen).size(), chosen.toString());
        assertEquals(1, refused());
        assertEquals(0, used());
    }

    @Test
    void aNewBlockGoesWhereThePlanSaysInItsOrder() {
        for (int again = 0; again < 20; again++) {
            assertEquals(List.of("host5", "host1", "host2"), newBlock(FILE, 3));
        }
        assertEquals(List.of("host5", "host1"), newBlock(FILE, 2));
        assertEquals(21, used());
    }

    @Test
    void theRedirectOfAWebHdfsClientLeadsToTheFirstNode() {
        for (int again = 0; again < 20; again++) {
            assertEquals(List.of("host5"), redirect(FILE));
        }
    }

    @Test
    void withoutAPlanHdfsChooses() {
        assertEquals(3, new HashSet<>(newBlock("/other", 3)).size());
        assertEquals(1, redirect("/other").size());
        assertEquals(0, used() + refused());
    }

    @Test
    void aNodeThatTheClientExcludesIsNotUsed() {
        List<String> chosen = newBlock(FILE, 3, "host1");
        assertFalse(chosen.contains("host1"));
        assertOwnChoice(chosen, 3);
    }

    @Test
    void anExcludedFirstNodeIsNotTheRedirectsTarget() {
        assertFalse(redirect(FILE, "host5").contains("host5"));
    }

    @Test
    void aDeadNodeIsNotUsed() {
        nodes.get("host1").setAlive(false);
        newBlock(FILE, 3);
        assertEquals(1, refused());
    }

    @Test
    void aNodeThatLeftTheNetworkIsNotUsed() {
        map.remove(nodes.get("host2"));
        assertFalse(newBlock(FILE, 3).contains("host2"));
        assertEquals(1, refused());
    }

    @Test
    void aNodeThatLeavesServiceIsNotUsed() {
        nodes.get("host5").startDecommission();
        assertFalse(newBlock(FILE, 3).contains("host5"));
        assertEquals(1, refused());
    }

    @Test
    void aFullNodeIsNotUsed() {
        space(nodes.get("host2"), BLOCK / 2);
        List<String> chosen = newBlock(FILE, 3);
        assertFalse(chosen.contains("host2"));
        assertOwnChoice(chosen, 3);
    }

    @Test
    void aPlanThatIsTooShortOrNamesWhatIsNotThereIsNotFollowed() {
        assertOwnChoice(newBlock(FILE, 4), 4);
        for (String name : List.of("host9", "10.0.0.9", "10.0.0.2:1", "host2:9866", "host5")) {
            table.put("/c/x", List.of("host5", "host1", name), 1000);
            assertEquals(3, new HashSet<>(newBlock(FILE, 3)).size(), name);
        }
        assertEquals(6, refused());
    }

    @Test
    void repairsNeverFollowThePlan() {
        List<DatanodeStorageInfo> live = List.of(nodes.get("host3").getStorageInfos()[0]);
        for (int again = 0; again < 20; again++) {
            policy.chooseTarget(FILE, 1, null, live, false, new HashSet<>(), BLOCK, disks(), null); // re-replication
            policy.chooseTarget(FILE, 1, null, live, true, new HashSet<>(), BLOCK, disks(), null); // pipeline repair
        }
        assertEquals(0, used() + refused());
    }

    @Test
    void replicasMayLieInOneRackUnlessTheSettingSaysOtherwise() {
        DatanodeInfo[] oneRack = {nodes.get("host1"), nodes.get("host2"), nodes.get("host3")};
        assertTrue(policy.verifyBlockPlacement(oneRack, 3).isPlacementPolicySatisfied());
        Configuration conf = new HdfsConfiguration();
        conf.setBoolean(PlannedPlacementPolicy.ANY_RACKS_KEY, false);
        policy.initialize(conf, null, map, new Host2NodesMap());
        assertFalse(policy.verifyBlockPlacement(oneRack, 3).isPlacementPolicySatisfied());
    }
}
