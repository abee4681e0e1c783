//! Whether all members of a set hold the same.

use std::collections::{BTreeMap, BTreeSet};

use super::Anomaly;

/// What dbHash says of one database on one member: hash by collection.
pub type Hashes = BTreeMap<String, String>;

/// One member: its address, and the hashes of each database.
pub type Member = (String, BTreeMap<String, Hashes>);

/// Compares every member with the first one, at rest. A collection that a member does not have differs too.
pub fn judge(members: &[Member]) -> Vec<Anomaly> {
    let mut anomalies = Vec::new();
    let Some(((first, expected), others)) = members.split_first() else { return anomalies };
    for (other, found) in others {
        let databases: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
        for db in databases {
            let none = Hashes::new();
            let (here, there) = (expected.get(db).unwrap_or(&none), found.get(db).unwrap_or(&none));
            let names: BTreeSet<&String> = here.keys().chain(there.keys()).collect();
            for name in names.into_iter().filter(|name| here.get(*name) != there.get(*name)) {
                let hash = |hashes: &Hashes| hashes.get(name).map_or("nothing".to_owned(), Clone::clone);
                let text = format!("{db}.{name}: {first} has {}, {other} has {}", hash(here), hash(there));
                anomalies.push(Anomaly { kind: "members differ", text });
            }
        }
    }
    anomalies
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(address: &str, hashes: &[(&str, &str, &str)]) -> Member {
        let mut databases: BTreeMap<String, Hashes> = BTreeMap::new();
        for (db, name, hash) in hashes {
            databases.entry((*db).to_owned()).or_default().insert((*name).to_owned(), (*hash).to_owned());
        }
        (address.to_owned(), databases)
    }

    #[test]
    fn what_differs_is_named() {
        let all = [("lab", "a", "12"), ("lab", "b", "34"), ("other", "a", "56")];
        let same = [member("m1", &all), member("m2", &all), member("m3", &all)];
        assert!(judge(&same).is_empty());
        let other = [member("m1", &all), member("m2", &[("lab", "a", "12"), ("lab", "b", "35")])];
        let texts: Vec<String> = judge(&other).into_iter().map(|anomaly| anomaly.text).collect();
        assert_eq!(texts, ["lab.b: m1 has 34, m2 has 35", "other.a: m1 has 56, m2 has nothing"]);
        assert!(judge(&[]).is_empty());
    }
}
