"""A scikit-learn pipeline and search; answers at the rank the classifier is sure of."""

from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hace import HACEClassifier, Hierarchy

iris = load_iris()
names = iris.target_names[iris.target]
h = Hierarchy.from_tree({"small": ["setosa"], "large": ["versicolor", "virginica"]})
train_x, test_x, train_y, test_y = train_test_split(iris.data, names, random_state=0, stratify=names)

pipeline = make_pipeline(StandardScaler(), HACEClassifier(h))
search = GridSearchCV(pipeline, {"haceclassifier__weight_decay": [1e-4, 1e-2]}, cv=3).fit(train_x, train_y)
print(f"{search.best_params_}, accuracy {search.score(test_x, test_y):.3f}")

best = search.best_estimator_
sure = best[-1].predict_node(best[:-1].transform(test_x), threshold=0.9)
print("answers at 0.9:", {node: int((sure == node).sum()) for node in sorted(set(sure))})
