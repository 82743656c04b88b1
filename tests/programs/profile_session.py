"""Profile a model and print the operators that take longest. Usage: profile_session.py MODEL PREFIX.json"""

import json
import sys

import numpy as np
import onnxruntime as ort


def profile_session(model_path, input_data, profile_output="profile.json"):
    opts = ort.SessionOptions()
    opts.enable_profiling = True
    opts.profile_file_prefix = profile_output.replace(".json", "")
    opts.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(
        model_path,
        sess_options=opts,
        providers=["CUDAExecutionProvider", "CPUExecutionProvider"],
    )
    # Run inference (profile is generated on session end)
    for _ in range(10):
        session.run(None, input_data)
    # End profiling
    profile_file = session.end_profiling()
    print(f"Profile saved to: {profile_file}")
    return profile_file


def analyze_profile(profile_path):
    with open(profile_path) as f:
        events = json.load(f)
    # Aggregate by operator type
    op_times = {}
    for event in events:
        if event.get("cat") == "Node":
            op_type = event.get("args", {}).get("op_name", "unknown")
            duration_us = event.get("dur", 0)
            if op_type not in op_times:
                op_times[op_type] = {"total_us": 0, "count": 0}
            op_times[op_type]["total_us"] += duration_us
            op_times[op_type]["count"] += 1
    # Sort by total time
    sorted_ops = sorted(op_times.items(), key=lambda x: x[1]["total_us"], reverse=True)
    total_time = sum(v["total_us"] for _, v in op_times.items())
    print(f"Total inference time: {total_time / 1000:.2f} ms")
    print("\nTop operators by time:")
    for op_name, stats in sorted_ops[:10]:
        pct = stats["total_us"] / total_time * 100
        avg = stats["total_us"] / stats["count"]
        print(f" {op_name}: {stats['total_us'] / 1000:.2f} ms ({pct:.1f}%), {stats['count']} calls, avg {avg:.0f} us")


if __name__ == "__main__":
    image = np.random.default_rng(0).integers(0, 17, (1, 8, 8)).astype(np.uint8)
    analyze_profile(profile_session(sys.argv[1], {"image": image}, sys.argv[2]))
