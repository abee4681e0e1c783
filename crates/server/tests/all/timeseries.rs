//! A time-series collection answers as a plain collection with the same documents: random measurements, queries and deletes.

use crate::support::{Connection, Server, number};
use sheaf_bson::{ArrayBuf, DocBuf, Value, doc};

/// Rounds of measurements and questions.
const ROUNDS: u64 = 60;

/// 2024-01-01 in milliseconds.
const BEGIN: i64 = 1_704_067_200_000;

/// Noise that is the same on every run.
struct Noise(u64);

impl Noise {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    fn time(&mut self) -> Value<'static> {
        // Mostly close to each other, some before 1970, some in the next hours.
        let spread = [60, 7200, 1_000_000][self.below(3) as usize];
        let offset = self.below(spread) as i64 * 1000;
        Value::DateTime(if self.below(30) == 0 { -offset } else { BEGIN + offset })
    }

    fn value(&mut self) -> Value<'static> {
        match self.below(8) {
            0 => Value::Null,
            1 => Value::Double(self.below(100) as f64 / 4.0),
            2 => Value::Int64(self.below(50) as i64),
            3 => Value::String(["a", "b"][self.below(2) as usize]),
            4 => self.time(),
            _ => Value::Int32(self.below(50) as i32),
        }
    }

    fn measurement(&mut self, id: i32) -> DocBuf {
        let (time, value, other) = (self.time(), self.value(), self.value());
        let (kind, sensor) = (self.below(6), self.below(4) as i32);
        DocBuf::build(|out| {
            out.append("_id", id).append("t", time);
            match kind {
                0 => out.append("m", sensor),
                1 => out,
                _ => out.append("m", &doc! { "s": sensor, "x": { "y": 1 } }),
            };
            match self.below(6) {
                0 => out.append("v", &ArrayBuf::of([value, other])),
                1 => out.append("v", &doc! { "w": value }),
                2 => out,
                _ => out.append("v", value),
            };
            out.append("n", id % 7);
        })
    }

    fn condition(&mut self) -> DocBuf {
        const COMPARISONS: [&str; 6] = ["$eq", "$gt", "$gte", "$lt", "$lte", "$ne"];
        let operator = COMPARISONS[self.below(6) as usize];
        let (time, value, sensor) = (self.time(), self.value(), self.below(4) as i32);
        match self.below(8) {
            0 => doc! { "m.s": { (operator): sensor } },
            1 => doc! { "m": sensor },
            2 | 3 => doc! { "t": { (operator): time } },
            4 => doc! { "v.w": { (operator): value } },
            5 => doc! { "n": sensor },
            6 => doc! { "$or": [{ "m.s": sensor }, { "v": { (operator): value } }] },
            _ => doc! { "v": { (operator): value } },
        }
    }

    fn filter(&mut self) -> DocBuf {
        match self.below(5) {
            0 => DocBuf::new(),
            1 | 2 => self.condition(),
            _ => doc! { "$and": [self.condition().as_raw(), self.condition().as_raw()] },
        }
    }
}

/// Runs a command on the database of the test.
fn run(connection: &mut Connection, command: DocBuf) -> DocBuf {
    let command = command.with("$db", "t");
    let reply = connection.run(&command);
    assert!(reply.as_raw().get("ok").is_some_and(|ok| ok.truthy()), "{command:?}: {reply:?}");
    reply
}

fn ids(connection: &mut Connection, collection: &str, filter: &DocBuf) -> Vec<i64> {
    let find = doc! { "find": collection, "filter": filter, "sort": { "_id": 1 }, "batchSize": 100_000, "projection": { "_id": 1 } };
    let reply = run(connection, find);
    let batch = reply.as_raw().get("cursor").and_then(|c| c.as_doc()?.get("firstBatch")?.as_array()).unwrap();
    batch.values().map(|row| row.as_doc().unwrap().get("_id").unwrap().as_exact_i64().unwrap()).collect()
}

/// Pipelines that read less than whole measurements, or not all of them.
fn compare_pipelines(connection: &mut Connection) {
    let latest = doc! { "$group": { "_id": "$m", "t": { "$first": "$t" } } };
    let latest_by = doc! { "$group": { "_id": "$m.s", "t": { "$last": "$t" } } };
    let earliest = doc! { "$group": { "_id": "$m.s", "t": { "$first": "$t" } } };
    let pipelines = [
        ArrayBuf::of(&[doc! { "$sort": { "m": 1, "t": -1 } }, latest.clone()]),
        ArrayBuf::of(&[doc! { "$sort": { "t": -1 } }, latest]),
        ArrayBuf::of(&[doc! { "$sort": { "m.s": -1, "t": 1 } }, latest_by]),
        ArrayBuf::of(&[doc! { "$sort": { "m.s": 1, "t": 1 } }, earliest]),
        ArrayBuf::of(&[doc! { "$group": { "_id": "$n", "s": { "$sum": "$v" }, "m": { "$max": "$t" } } }]),
        ArrayBuf::of(&[doc! { "$group": { "_id": Value::Null, "n": { "$sum": 1 } } }]),
        ArrayBuf::of(&[doc! { "$project": { "w": "$v.w", "m": 1 } }]),
        ArrayBuf::of(&[doc! { "$match": { "v": { "$gt": 3 } } }, doc! { "$project": { "n": 1 } }]),
    ];
    for pipeline in &pipelines {
        let stages =
            ArrayBuf::of(pipeline.as_raw().values().chain([Value::from(&doc! { "$sort": { "_id": 1 } })]));
        let [measured, plain] = ["measured", "plain"].map(|collection| {
            let command =
                doc! { "aggregate": collection, "pipeline": &stages, "cursor": { "batchSize": 100_000 } };
            let reply = run(connection, command);
            let batch =
                reply.as_raw().get("cursor").and_then(|c| c.as_doc()?.get("firstBatch")?.as_array()).unwrap();
            batch.values().map(fields_by_name).collect::<Vec<_>>()
        });
        assert_eq!(measured, plain, "{pipeline:?}");
    }
}

/// A row's fields without their order: a measurement begins with its time and its meta value.
fn fields_by_name(row: Value<'_>) -> Vec<String> {
    let fields = row.as_doc().unwrap().iter();
    let mut fields: Vec<String> =
        fields.map(|field| sheaf_bson::element_text(field.key(), field.value())).collect();
    fields.sort();
    fields
}

#[test]
fn measurements_are_found_as_documents_are() {
    let server = Server::start(|_, _| {});
    let mut connection = server.connect();
    let timeseries = doc! { "timeField": "t", "metaField": "m" };
    run(&mut connection, doc! { "create": "measured", "timeseries": &timeseries });
    run(&mut connection, doc! { "create": "plain" });
    let mut noise = Noise(0x9E37_79B9_7F4A_7C15);
    let mut id = 0;
    for _ in 0..ROUNDS {
        let count = 1 + noise.below(40) as i32;
        let documents: Vec<DocBuf> = (id..id + count).map(|id| noise.measurement(id)).collect();
        id += count;
        let filters: Vec<DocBuf> = (0..12).map(|_| noise.filter()).collect();
        let deleted = (noise.below(3) == 0).then(|| noise.condition());
        for collection in ["measured", "plain"] {
            run(&mut connection, doc! { "insert": collection, "documents": &ArrayBuf::of(&documents) });
        }
        if let Some(q) = &deleted {
            let gone = ["measured", "plain"].map(|collection| {
                let delete = doc! { "delete": collection, "deletes": [{ "q": q, "limit": 0 }] };
                number(&run(&mut connection, delete), "n")
            });
            assert_eq!(gone[0], gone[1], "{q:?}");
        }
        compare_pipelines(&mut connection);
        for filter in &filters {
            let found = ids(&mut connection, "measured", filter);
            assert_eq!(found, ids(&mut connection, "plain", filter), "{filter:?}");
            let counted = run(&mut connection, doc! { "count": "measured", "query": filter });
            assert_eq!(number(&counted, "n"), found.len() as i64, "{filter:?}");
        }
    }
}
