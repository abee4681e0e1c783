use super::*;
use crate::measure::{Arrival, Span};

const GOOD: &str = r#"
title: A test
workload: insert-latency
settings: {inserts: 500, rounds: 1, concerns: ["w:1"], text_bytes: 10, database: lab}
server: {cache_gb: 0.5}
phases:
  warm_up: {seconds: 2}
  measure: {seconds: 30}
matrix:
  - axis: mode
    values:
      - {name: normal, settings: {concerns: ["w:0"]}}
      - {name: safe, settings: {concerns: ["w:1"]}}
  - axis: journal
    values:
      - {name: journal off, server: {journal: false}}
      - {name: journal on, server: {journal: true}}
  - axis: kind
    values:
      - {name: ""}
"#;

fn parse(text: &str) -> Result<Experiment> {
    Experiment::parse(text, "own.yaml", "own")
}

#[test]
fn the_matrix_gives_all_rows_in_order() {
    let experiment = parse(GOOD).unwrap();
    assert_eq!((experiment.name.as_str(), experiment.repetitions), ("own", 1));
    assert_eq!(experiment.targets, ["sheaf"]);
    let rows = experiment.variations(&Overrides::default()).unwrap();
    let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!(names, ["normal, journal off", "normal, journal on", "safe, journal off", "safe, journal on"]);
    assert_eq!(rows[1].server.journal, Some(true));
    assert_eq!(rows[1].server.cache_gb, Some(0.5));
    assert_eq!(rows[2].values["mode"], "safe");
    assert_eq!(rows[0].settings.get("concerns").unwrap()[0], "w:0");
    assert_eq!(rows[0].settings.get("inserts").unwrap(), 500);
}

#[test]
fn what_is_set_wins_over_the_matrix() {
    let experiment = parse(GOOD).unwrap();
    let mut overrides = Overrides::default();
    for text in ["inserts=9", "server.journal=true", "phases.measure={operations: 7}", "settings.rounds=3"] {
        overrides.add(text).unwrap();
    }
    for row in experiment.variations(&overrides).unwrap() {
        assert_eq!(row.settings.get("inserts").unwrap(), 9);
        assert_eq!(row.settings.get("rounds").unwrap(), 3);
        assert_eq!(row.server.journal, Some(true));
        assert_eq!(row.server.cache_gb, Some(0.5));
        assert_eq!(row.phases.load(1.0).unwrap().measure, Span::Operations(7));
        row.check(&experiment.workload).unwrap();
    }
    let shown: Vec<_> = overrides.iter().collect();
    assert_eq!(shown[0], ("inserts".to_owned(), "9".to_owned()));
    for bad in ["inserts", "=3", "a..b=1", "x=[1"] {
        assert!(Overrides::default().add(bad).is_err(), "{bad}");
    }
    let mut unknown = Overrides::default();
    unknown.add("server.colour=red").unwrap();
    let error = experiment.variations(&unknown).unwrap_err().to_string();
    assert!(error.contains("--set server.colour") && error.contains("unknown field"), "{error}");
}

#[test]
fn scale_shortens_but_not_to_nothing() {
    let phases = Phases {
        warm_up: Some(Length { seconds: Some(10.0), operations: None }),
        measure: Some(Length { seconds: Some(30.0), operations: None }),
        rate: Some(100.0),
    };
    let load = phases.load(0.5).unwrap();
    assert_eq!((load.warm_up, load.measure), (Some(Span::Seconds(5.0)), Span::Seconds(15.0)));
    assert_eq!(load.arrival, Arrival::Open { per_second: 100.0 });
    assert_eq!(phases.load(0.001).unwrap().measure, Span::Seconds(1.0));
    let short =
        Phases { measure: Some(Length { seconds: Some(0.25), operations: None }), ..Phases::default() };
    assert_eq!(short.load(0.01).unwrap().measure, Span::Seconds(0.25));
    assert_eq!(Phases::default().load(1.0).unwrap().measure, Span::Unbounded);
}

#[test]
fn bad_files_get_a_clear_error() {
    for (from, to, words) in [
        ("title: A test\n", "", &["missing field `title`"][..]),
        (
            "workload: insert-latency",
            "workload: insert-latenzy",
            &["line 3: workload", "there is no workload insert-latenzy"],
        ),
        (
            "  measure: {seconds",
            "  measure: {second",
            &["phases.measure", "unknown field `second`", "line 8"],
        ),
        ("  measure: {seconds: 30}", "  measure: {}", &["row \"normal, journal off\"", "phases.measure"]),
        ("server: {cache_gb: 0.5}", "server: {cache_gb: much}", &["server.cache_gb", "line 5"]),
        ("inserts: 500", "insert: 500", &["settings", "unknown field `insert`"]),
        ("matrix:", "repetitions: 0\nmatrix:", &["line 9: repetitions", "at least 1"]),
        ("      - {name: \"\"}\n", "      []\n", &["axis kind has no values"]),
        ("title: A test", "title: A test\ntitel: twice", &["unknown field `titel`", "line 3"]),
        ("concerns: [\"w:0\"]", "concerns: [\"w:0,fast:1\"]", &["unknown part fast"]),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        match parse(&text) {
            Ok(_) => panic!("{to:?} was taken"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.starts_with("own.yaml: "), "{error}");
                for word in words {
                    assert!(error.contains(word), "{to:?} should say {word:?}: {error}");
                }
            }
        }
    }
    let error = Experiment::open("no-such-thing").unwrap_err().to_string();
    assert!(error.contains("no-such-thing") && error.contains("insert-latency"), "{error}");
}

#[test]
fn every_ready_made_experiment_is_part_of_the_program_and_parses() {
    let folder = "../../experiments";
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        files += 1;
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let ready = ready_by_name(&name).unwrap_or_else(|| panic!("{name} is not listed in ready.rs"));
        assert_eq!(ready.text, std::fs::read_to_string(&path).unwrap(), "{name} is not up to date");
        Experiment::open(&name).unwrap();
    }
    assert_eq!(files, ready().count());
}

#[test]
fn what_is_set_wrongly_is_told_with_its_value_and_what_is_expected() {
    let experiment = Experiment::open("ycsb-a").unwrap();
    for (text, words) in [
        ("phases.measure.seconds=-1", &["phases.measure.seconds", "-1", "0 or more"][..]),
        (
            "phases.measure=banana",
            &["--set phases.measure", "banana", "{seconds: 30} or {operations: 100000}"],
        ),
        ("phases.measure.operations=-5", &["phases.measure", "operations", "-5"]),
        ("phases.warm_up={seconds: 1, operations: 1}", &["phases.warm_up", "either", "both"]),
        ("phases.warm_up={}", &["phases.warm_up", "either", "neither"]),
        ("phases.rate=0", &["phases.rate", "0 is no rate", "more than 0"]),
        ("weights=5", &["settings: weights: ", "5", "{read: 50, update: 50}"]),
        ("clients=many", &["settings: clients: ", "many", "u32"]),
    ] {
        let mut overrides = Overrides::default();
        overrides.add(text).unwrap();
        let asked = |rows: Vec<Variation>| rows.iter().try_for_each(|row| row.check(&experiment.workload));
        let error = experiment.variations(&overrides).and_then(asked).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{text} should say {word:?}: {error}");
        }
    }
}
